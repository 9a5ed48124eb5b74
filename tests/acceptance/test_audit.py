"""Audits against a real primary: what was missed without a message, and a primary that came back from an old copy."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_events, selector
from tests.support.raw_reader import RawReader, read_retained
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto

VALUES = {f"plant/{number}": b"old" for number in range(10)}
EVERYTHING = "topic readwrite #\ntopic read $SYS/#\n"


def audited(node: LiveNode, *further: str) -> tuple[int, Any]:
    """Run `fanout audit` and return its exit code and what it says about the link."""
    answer = run_fanout("audit", "--json", "--url", node.url, *further)
    return answer.returncode, json.loads(answer.stdout)["primary"]


def test_audit_repairs_what_was_missed(tmp_path: Path, nodes: Nodes) -> None:
    """T14: values that changed and vanished without a message to the link are put right while it is live.

    For a moment the primary does not let the link read some topics. Up to a fifth of them are removed, more only when
    that is confirmed. Local subscribers get each difference once, and nothing that is unchanged. The node stays ready
    unless topics are unconfirmed.
    """
    rules, vanished = tmp_path / "rules", 5
    blind = "".join(f"topic deny plant/{number}\n" for number in range(vanished + 1))
    rules.write_text(EVERYTHING + "user edge\n" + EVERYTHING)
    settings = [f"acl_file {rules}", "sys_interval 1"]
    with Mosquitto(tmp_path, settings=settings) as mosquitto, publisher(mosquitto.port) as client:

        def allow(text: str) -> None:
            rules.write_text(EVERYTHING + "user edge\n" + text)
            assert mosquitto.process is not None
            mosquitto.process.send_signal(signal.SIGHUP)

        publish_all(client, list(VALUES.items()))
        keys = QUICK + 'username = "edge"\nsample_topics = 0\n'  # a sample would call for an audit of its own
        node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=keys)).started()
        with subscriber(node.port, "plant/#", qos=1) as local:
            local.wait(10)
            wait_until_blocking(lambda: node.link_status()["counted_outside"] is not None, what="the primary's count")
            allow(blind + EVERYTHING)
            wait_until_blocking(lambda: "plant/0" not in seen_by_edge(mosquitto.port), what="the new rules")
            publish_all(client, [(f"plant/{number}", b"") for number in range(vanished)])
            publish_all(client, [(f"plant/{vanished}", b"new")])
            allow(EVERYTHING)
            wait_until_blocking(lambda: f"plant/{vanished}" in seen_by_edge(mosquitto.port), what="the old rules")
            assert read_retained(node.port, "plant/#") == VALUES

            code, found = audited(node)
            assert (code, found["changed_topics"], found["removed_topics"], found["kept_topics"]) == (1, 1, 0, vanished)
            assert not node.ready
            assert f"fanout audit primary --confirm {vanished}" in node.link_status()["alarm"]
            code, found = audited(node, "primary", "--list")
            assert (code, found["topics"]) == (1, [f"plant/{number}" for number in range(vanished)])
            assert audited(node, "primary", "--confirm", "4")[0] == 5
            code, found = audited(node, "primary", "--confirm", str(vanished))
            assert (code, found["removed_topics"], found["kept_topics"]) == (0, vanished, 0)
            node.wait_until_ready()
            assert node.link_status()["alarm"] is None
            assert read_retained(node.port, "plant/#") == read_retained(mosquitto.port, "plant/#")
            differences = {f"plant/{number}": b"" for number in range(vanished)} | {f"plant/{vanished}": b"new"}
            wait_until_blocking(lambda: len(local.messages) >= 10 + len(differences), what="the differences")
            publish_all(client, [("plant/9", b"live")])
            local.wait_for("plant/9", b"live")
            later = [(one.topic, one.payload) for one in local.messages[10:]]
            assert sorted(later) == sorted([*differences.items(), ("plant/9", b"live")])
        assert node.link_status()["epochs_total"] == 1
        assert node.stop() == 0
        assert [event["event"] for event in read_events(node.log_directory)].count("audit") == 2


def seen_by_edge(port: int) -> set[str]:
    """Return the topics that the link's user may read now."""
    with RawReader(port, username="edge") as reader:
        reader.subscribe("plant/#")
    return set(reader.values)
