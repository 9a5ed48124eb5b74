"""Why updates are missing beside a real broker, as the first screen of terminal and page says it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.waiting import wait_until_blocking

if TYPE_CHECKING:
    import paho.mqtt.client as paho
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.mosquitto, pytest.mark.timeout(600)]

AHEAD_S = 3
CLOCK = f"""
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {AHEAD_S}
time.time_ns = lambda: _time_ns() + {AHEAD_S}_000_000_000
"""
"""A module that Python loads at its start."""
HIDDEN = "topic deny plant/s/#\n"
EVERYTHING = "topic readwrite #\ntopic read $SYS/#\n"
SALT, ITERATIONS = b"a dozen byte", 101
BRANCHES, TOPICS, ROUNDS = "abs", 5, 6
LARGE = 2_000
"""Bytes of a packet that the node named small skips."""


def rules(*, narrowed: str = "") -> str:
    """Return access rules: one user never reads a branch, another one not while that says so."""
    return f"{EVERYTHING}user free\n{EVERYTHING}user hidden\n{HIDDEN}{EVERYTHING}user narrowed\n{narrowed}{EVERYTHING}"


def node_at(nodes: Nodes, port: int, name: str, *, user: str = "free", settings: str = "") -> LiveNode:
    """Return a secondary, or the tap, with a user of its own at the broker."""
    own = f'{QUICK}heartbeat_s = 0.2\nusername = "{user}"\n{settings}'
    wanted = link(port, selector("plant/#"), name="plant", settings=own)
    return nodes.tap(wanted) if name == "tap" else nodes.secondary(wanted, name=name)


def dynamic_security(*, refused: str) -> dict[str, Any]:
    """Return the users of Mosquitto's plugin: free, and refused, who may not subscribe to a filter."""
    hashed = hashlib.pbkdf2_hmac("sha512", b"secret", SALT, ITERATIONS)
    secret = {"password": base64.b64encode(hashed).decode(), "salt": base64.b64encode(SALT).decode()}
    rule = {"acltype": "subscribePattern", "topic": refused, "priority": 0, "allow": False}
    rights = ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
    return {
        "defaultACLAccess": dict.fromkeys(rights, True),
        "roles": [{"rolename": "free", "acls": []}, {"rolename": "refused", "acls": [rule]}],
        "clients": [
            {"username": name, "roles": [{"rolename": name}], "iterations": ITERATIONS, **secret}
            for name in ("free", "refused")
        ],
    }


class Stream:
    """Values that never repeat."""

    def __init__(self, client: paho.Client) -> None:
        self._client = client
        self._number = 0

    def publish(self, topics: list[str], *, size: int = 0) -> None:
        """Publish a value on each topic."""
        self._number += 1
        publish_all(self._client, [(topic, b"%d " % self._number + b"x" * size) for topic in topics])


def first_screen(tmp_path: Path, *logs: LiveNode) -> tuple[str, str, Any]:
    """Return what the terminal shows, the page as far as the figures, and the JSON."""
    document, page = tmp_path / "report.json", tmp_path / "report.html"
    options = ["--settle", "0", "--json", str(document), "--html", str(page)]
    directories = [str(node.log_directory) for node in logs]
    answer = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["report", "summary", *directories, *options])
    assert answer.exit_code == 0, answer.output
    head, _, _ = page.read_text().partition("<h2>All figures</h2>")
    return answer.stdout.replace("\u00a0", " "), head.replace("\u00a0", " "), json.loads(document.read_text())


def test_each_cause_is_on_the_first_screen(
    spark: SparkSession, tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Done when: an ACL that hides a branch at a clock 3 s ahead, one that comes to hide it, and messages too large."""
    acl = tmp_path / "rules"
    acl.write_text(rules())
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK)
    everywhere = [f"plant/{branch}/{number}" for branch in BRANCHES for number in range(TOPICS)]
    with Mosquitto(tmp_path, settings=[f"acl_file {acl}"]) as mosquitto, publisher(mosquitto.port) as client:
        stream = Stream(client)
        stream.publish(everywhere)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "clock"), os.environ.get("PYTHONPATH", "")]))
            ahead = node_at(nodes, mosquitto.port, "ahead", user="hidden")
        tap = node_at(nodes, mosquitto.port, "tap")
        small = node_at(nodes, mosquitto.port, "small", settings=f"packet_bytes_max = {LARGE}\n")
        narrowed = node_at(nodes, mosquitto.port, "narrowed", user="narrowed", settings="audit_interval_s = 1\n")
        every = [tap.started(), ahead.started(), small.started(), narrowed.started()]
        begun = time.monotonic()
        while time.monotonic() < begun + 1:  # of the first moments a report says nothing, since clocks may differ
            stream.publish(everywhere[:TOPICS])
        for _ in range(ROUNDS):
            stream.publish(everywhere)
            stream.publish(["plant/b/0"], size=2 * LARGE)
        acl.write_text(rules(narrowed=HIDDEN))
        assert mosquitto.process is not None
        mosquitto.process.send_signal(signal.SIGHUP)
        wait_until_blocking(lambda: "Reloading config" in mosquitto.log_text(), what="the rules")
        for _ in range(ROUNDS):
            stream.publish(everywhere)
        wait_until_blocking(lambda: narrowed.link_status("plant")["unconfirmed"] == TOPICS, what="an audit")
        received = [node.link_status("plant")["received_total"] for node in every]
        stream.publish(everywhere[:TOPICS])
        wait_until_blocking(
            lambda: all(
                node.link_status("plant")["received_total"] >= before + TOPICS
                for node, before in zip(every, received, strict=True)
            ),
            what="the last values",
        )
        for node in reversed(every):
            node.stop()
    text, page, document = first_screen(tmp_path, *every)

    nodes_of = {one["node"]: one for one in document["summary"]["nodes"]}
    lost = {
        name: (one["missing"], {each["cause"]: each["updates"] for each in one["causes"]})
        for name, one in nodes_of.items()
    }
    assert lost == {
        "ahead": (2 * ROUNDS * TOPICS, {"hidden": 2 * ROUNDS * TOPICS}),
        "narrowed": (ROUNDS * TOPICS, {"hidden": ROUNDS * TOPICS}),
        "small": (ROUNDS, {"skipped": ROUNDS}),
    }
    assert all(one["missing_is_exact"] for one in nodes_of.values())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].startswith("NOT COMPLETE 3 of 3 secondaries lack updates or values")
    of_ahead = next(line for line in lines if line.startswith("ahead "))
    assert f"going on not readable by this user {2 * ROUNDS * TOPICS} plant/s/# {2 * ROUNDS * TOPICS}" in of_ahead
    (clock,) = [line for line in lines if line.startswith("ahead tap ") and line.endswith(" s ahead")]
    assert float(clock.split()[-3]) == pytest.approx(AHEAD_S, abs=0.1)  # a slow machine hears one of them later
    shown = [
        f"Skipped by the node ({ROUNDS}): messages that the link cannot replicate",
        f"Skipped in all, as the logs say: packet too large {ROUNDS}.",
        "Not readable: plant/s/# at ahead, plant/s/# at narrowed.",
        "topics did not come from the primary and are kept: plant/#, ",
        "no longer readable by user narrowed",
        "See them with: fanout audit plant --list.",
    ]
    for said in shown:
        assert said in text
        assert said in page
    (raw,) = [one["lag"] for one in document["lag"]["propagation"] if one["node"] == "ahead"]
    assert AHEAD_S * 1_000_000 - 100_000 < raw["p50_us"] <= raw["p99_us"] < AHEAD_S * 1_000_000 + 10_000_000
    (skips,) = [one for one in document["alarms"] if one["kind"] == "skipped"]
    assert (skips["node"], skips["message"], skips["times"]) == ("small", "packet_too_large", ROUNDS)


def test_a_refused_subscribe_is_on_the_first_screen(spark: SparkSession, tmp_path: Path, nodes: Nodes) -> None:
    """Mosquitto's dynamic security answers SUBSCRIBE with 0x87, which its file of access rules never does."""
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "users").write_text(json.dumps(dynamic_security(refused="plant/#")))
    (library,) = Path("/usr/lib").glob("*/mosquitto_dynamic_security.so")
    plugin = [f"plugin {library}", f"plugin_opt_config_file {tmp_path / 'users'}"]
    with Mosquitto(tmp_path, settings=plugin) as mosquitto, publisher(mosquitto.port) as client:
        password = f'password_file = "{tmp_path / "password"}"\n'
        tap = node_at(nodes, mosquitto.port, "tap", settings=password).started()
        edge = node_at(nodes, mosquitto.port, "edge", user="refused", settings=password)
        edge.start()
        wait_until_blocking(lambda: "0x87" in str(edge.link_status("plant")), what="the refusal")
        Stream(client).publish([f"plant/{number}" for number in range(TOPICS)])
        wait_until_blocking(lambda: tap.link_status("plant")["received_total"] >= TOPICS, what="the values")
        edge.stop()
        tap.stop()
    text, page, document = first_screen(tmp_path, tap, edge)
    (found,) = document["summary"]["nodes"]
    assert (found["node"], found["answer"], found["never_held"]) == ("edge", "not_complete", ["plant/#"])
    assert text.startswith("NOT COMPLETE")
    why = "link is down: the primary refused the subscription plant/#: Not authorized (0x87)."
    for said in (why, "subscribe to it at the primary, or correct the selector."):
        assert said in text
        assert said in page
