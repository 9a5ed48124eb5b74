"""Reports over what nodes shipped to an object store and removed from their own disks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs as pafs
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.errors import ReportError
from fanout.reports import run_report
from fanout.reports.values.document import Report
from tests.support.clients import subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_updates, selector
from tests.support.object_store import LocalS3, local_s3
from tests.support.waiting import wait_until_blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UPDATES = 60


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    """A local S3 server."""
    with local_s3() as server:
        yield server


def removed_files(node: LiveNode) -> int:
    """Return how many files a node removed."""
    return int(node.document("/v1/status")["log"]["archive"]["removed_files_total"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_missing_in_what_two_nodes_shipped(
    jvm: SparkSession, s3: LocalS3, nodes: Nodes, tmp_path: Path
) -> None:
    """A primary and a secondary ship to one place and keep nothing; the report over that place is complete and exact.

    So are reports over a copy of it that Spark reads by itself.
    """
    s3.make_bucket("reports")
    log = f'segment_age_max_s = 0.3\nkeep_bytes_max = 1\n[log.ship]\nto = "{s3.uri("reports/site")}"\n'
    hub = nodes.primary(log=log).started()
    edge = nodes.secondary(link(hub.port, selector("plant/#"), settings=QUICK), log=log).started()
    with publisher(hub.port) as client, subscriber(edge.port, "plant/#", qos=1) as packet_router:
        publish_all(client, [(f"plant/{number % 7}", b"%d" % number) for number in range(UPDATES)])
        wait_until_blocking(lambda: len(packet_router.messages) >= UPDATES, 60, what="the updates at the client")
    for node in (hub, edge):
        wait_until_blocking(partial(removed_files, node), 60, what="files that were shipped and removed")
    nodes.end()
    assert read_updates(hub.log_directory) == read_updates(edge.log_directory) == [], "all is confirmed, hence removed"
    answer = CliRunner().invoke(app, ["report", "completeness", s3.uri("reports/site"), "--settle", "0", "--json", "-"])
    assert answer.exit_code == 0, answer.output
    report = Report.model_validate_json(answer.stdout)
    (target,) = report.targets
    assert (target.node, target.basis, target.exact) == ("edge-1", "stamped", True)
    assert target.stamped is not None
    assert (target.stamped.expected, target.stamped.missing, target.stamped.unknown) == (UPDATES, 0, 0)
    assert target.final is not None
    assert target.final.equal == 7
    assert report.inputs.directories == (s3.uri("reports/site"),)
    copy = tmp_path / "copy"
    copy.mkdir()
    files, root = s3.open("reports/site")
    pafs.copy_files(root, str(copy), source_filesystem=files, destination_filesystem=pafs.LocalFileSystem())
    assert run_report("lag", [f"file://{copy}"]).report.lag == report.lag
    assert run_report("lag", [f"file://{tmp_path}/*"]).report.lag == report.lag, "Spark fills in a pattern"


def test_a_store_without_one_of_the_tables_is_read(jvm: SparkSession, tmp_path: Path) -> None:
    """A node that logged no update left no such directory; a place that holds neither table is told."""
    with pytest.raises(ReportError, match=r"there is no log file in file:///.* a pattern: URI/\*"):
        run_report("lag", [f"file://{tmp_path}"])


def test_a_store_that_spark_has_no_client_for_is_told(jvm: SparkSession) -> None:
    """The error says what Spark said, and the hint what to give it."""
    with pytest.raises(ReportError, match="FileSystem") as caught:
        run_report("lag", ["s3a://bucket/logs"])
    assert "hadoop-aws" in caught.value.hint
