"""Readiness as a load balancer and a script see it: `/readyz`, and `fanout ready` against real nodes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.acceptance.conftest import Mirror
from tests.cli.processes import run_fanout
from tests.support.mosquitto import Mosquitto, load_retained
from tests.support.nodes import QUICK, Nodes, link, selector, watched
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto


def test_ready_node_is_ready_everywhere(mirror: Mirror) -> None:
    """`fanout ready` ends with 0 against a node that is ready, and names the evidence."""
    answer = run_fanout("ready", mirror.secondary.url)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "edge-1 (secondary) is ready" in answer.stdout
    assert "marker" in answer.stdout
    document = json.loads(run_fanout("ready", "--json", mirror.secondary.url).stdout)
    assert document["ready"]
    assert {one["evidence"] for one in document["links"][0]["selectors"]} == {"marker"}


def test_node_waits_for_its_primary(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T8: without its primary a node answers 503 with the reason, `fanout ready` ends with 1, and `--wait` waits.

    `--wait` also bridges a node that is not up yet. Once the node is told to stop, a probe gets 503 or no
    connection, never 200.
    """
    mosquitto.stop()
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK), log=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_fanout, "ready", "--wait", "50", node.url)
        node.start()
        wait_until_blocking(lambda: node.link_status()["last_error"], what="the first attempt")
        status, document = node.probe()
        assert status == 503
        (reason,) = document["reasons"]
        assert reason.startswith("link primary is ")
        assert "refused" in reason.lower()
        assert node.get("/livez").status_code == 200  # nobody is to restart it
        answer = run_fanout("ready", node.url)
        assert answer.returncode == 1
        assert "not ready" in answer.stdout
        assert run_fanout("ready", "--wait", "0.6", node.url).returncode == 1
        assert not waiting.done()
        mosquitto.start()
        answer = waiting.result(60)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "is ready" in answer.stdout

    with watched(node) as answers:
        wait_until_blocking(lambda: answers, what="a first answer")
        assert node.stop() == 0
    verdicts = [answer["ready"] for answer in answers]
    assert verdicts == sorted(verdicts, reverse=True)
    assert all("the node is stopping" in answer["reasons"] for answer in answers if not answer["ready"])
    with pytest.raises(httpx.ConnectError):
        node.probe()


def test_lag_is_unknown_where_heartbeats_are_not_permitted(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A real ACL that leaves out the control topic: the node is ready with less evidence, and its lag is never zero."""
    acl = nodes.directory / "acl"
    acl.write_text("topic readwrite plant/#\ntopic read $SYS/#\n")
    mosquitto.settings = [f"acl_file {acl}"]
    mosquitto.restart()
    load_retained(mosquitto.port, [("plant/1", b"x")])
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK + "heartbeat_s = 0.2\n"), log=False
    ).started()
    assert node.probe()[1]["links"][0]["evidence"] == "barrier"
    (lag,) = node.document("/v1/lag")["links"]
    assert (lag["basis"], lag["lag_seconds"], lag["heartbeat_age_seconds"]) == ("unknown", None, None)
    assert lag["detail"] == "the primary does not let the link publish to its control topic: Not authorized (0x87)"
    metrics = node.get("/metrics").text
    assert 'fanout_link_ready{link="primary"} 1.0' in metrics
    assert "fanout_link_lag_seconds{" not in metrics
    assert "fanout_link_heartbeat_age_seconds{" not in metrics


def test_status_lag_and_metrics_agree(mirror: Mirror) -> None:
    """Every endpoint tells the same node: JSON documents and Prometheus text."""
    node = mirror.secondary
    status = node.document("/v1/status")
    assert (status["node"], status["role"], status["ready"]) == ("edge-1", "secondary", True)
    assert status["listeners"] == [node.address]
    assert [one["filter"] for one in status["links"][0]["selectors"]] == ["plant/#", "office/+/state", "set/#"]
    wait_until_blocking(lambda: node.document("/v1/lag")["links"][0]["lag_seconds"], what="a measured lag")
    (lag,) = node.document("/v1/lag")["links"]
    assert (lag["name"], lag["basis"]) == ("primary", "heartbeat")
    metrics = node.get("/metrics").text
    assert 'fanout_node_info{node="edge-1",role="secondary"' in metrics
    assert "fanout_node_ready 1.0" in metrics
    assert 'fanout_selector_complete{evidence="marker",link="primary",selector="plant/#"} 1.0' in metrics
    assert run_fanout("status", node.url).returncode == 0
    assert run_fanout("lag", node.url).returncode == 0
