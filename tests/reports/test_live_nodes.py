"""The completeness report on real runs of nodes with injected faults: it states them, exactly or as bounds."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, free_port, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_updates, selector
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = 200
LIVE_BEFORE, LIVE_AFTER = 500, 300
CUT_TOPICS, CUT_ROUNDS, CUT_MESSAGES = 40, 3, 30
CUT = CUT_TOPICS * CUT_ROUNDS + CUT_MESSAGES
"""Updates published while one secondary is cut off: three for each of 40 topics, and 30 that are not retained."""
LIVE, DOWN = 150, 100
"""Updates published before a node is killed, and while it is down; of 300 in all."""
KILL_UNKNOWN_S = 1.2
"""How long behind a kill a report calls an update unknown, at most: a second and the flush interval."""
REMOVED = 25
"""Rows taken out of a log."""


def updates(first: int, count: int) -> list[tuple[str, bytes]]:
    """Return updates with payloads that never repeat, spread over all topics."""
    return [(f"plant/{number % TOPICS}", b"%d" % number) for number in range(first, first + count)]


async def publish_run(port: int, *, proxy: Proxy, cut_off: LiveNode, watching: list[LiveNode]) -> None:
    """Publish live updates, some of them while `cut_off` is cut off, until `watching` all have the last one."""
    with publisher(port) as client:
        ends = [subscriber(node.port, "plant/end", qos=1) for node in watching]
        inboxes = [end.__enter__() for end in ends]
        try:
            await asyncio.to_thread(publish_all, client, updates(TOPICS, LIVE_BEFORE))
            await asyncio.to_thread(publish_all, client, [("plant/end", b"")], retain=False)
            await wait_until(lambda: all(inbox.messages for inbox in inboxes), what="the updates before")
            proxy.accepting = False
            proxy.cut()
            await wait_until(lambda: not cut_off.ready, what="503 at the node that is cut off")
            for number in range(CUT_ROUNDS):
                values = [(f"plant/{topic}", b"cut %d %d" % (number, topic)) for topic in range(CUT_TOPICS)]
                await asyncio.to_thread(publish_all, client, values)
            messages = [(f"plant/message/{number}", b"lost") for number in range(CUT_MESSAGES)]
            await asyncio.to_thread(publish_all, client, messages, retain=False)
            proxy.accepting = True
            await cut_off.until_ready()
            await asyncio.to_thread(publish_all, client, updates(TOPICS + LIVE_BEFORE, LIVE_AFTER))
            await asyncio.to_thread(publish_all, client, [("plant/end", b"")], retain=False)
            await wait_until(lambda: all(len(inbox.messages) == 2 for inbox in inboxes), what="the updates after")
        finally:
            for end in ends:
                end.__exit__(None, None, None)


def remove_rows(node: LiveNode, count: int) -> None:
    """Take rows of live updates out of the middle of a stopped node's log, as a fault of its disk would."""
    for path in sorted((node.log_directory / "v1" / "updates").rglob("*.parquet")):
        table = pq.ParquetFile(path).read()
        live = [row for row, phase in enumerate(table["phase"].to_pylist()) if phase == 0]
        if len(live) < 3 * count:
            continue
        taken = set(live[count : 2 * count])
        pq.write_table(table.take([row for row in range(table.num_rows) if row not in taken]), path)
        return
    raise AssertionError("no file has so many live updates")


def report(tmp_path: Path, *nodes: LiveNode) -> Any:
    """Return the completeness report over the logs of stopped nodes; its tables are below `tables`.

    The command runs in the Spark session of this thread; `tests/cli/test_report.py` runs it as a process.
    """
    document = tmp_path / "report.json"
    page = tmp_path / "report.html"
    directories = [str(node.log_directory) for node in nodes]
    options = ["--settle", "0", "--json", str(document), "--html", str(page), "--parquet", str(tmp_path / "tables")]
    answer = CliRunner().invoke(app, ["report", "completeness", "--verbose", *directories, *options])
    assert answer.exit_code == 0, answer.output
    assert page.read_text().startswith("<!doctype html>")
    return json.loads(document.read_text()) | {"table": answer.stdout}


def target(document: Any, node: LiveNode) -> Any:
    """Return what a report says about the only selector of a node."""
    (found,) = [one for one in document["targets"] if one["node"] == node.name]
    return found


def assert_one_clock(document: Any, *, corrected: dict[str, str]) -> None:
    """Assert that 0 lies between the bounds of the differences of clocks: all nodes run on one machine.

    Args:
        document: The report.
        corrected: The nodes that need bounds from both sides, with the node that stamped.
    """
    clocks = {(one["node"], one["stamped_by"]): one for one in document["lag"]["clocks"]}
    assert all(one["at_most_us"] >= 0 for one in clocks.values())
    for place in corrected.items():
        assert clocks[place]["at_least_us"] <= 0, clocks[place]
    for one in document["lag"]["propagation"]:
        if corrected.get(one["node"]) == one["stamped_by"]:
            times, raw = one["corrected"], one["lag"]
            for name in ("mean_us", "most_us"):
                assert abs(times[name] - raw[name]) <= times["uncertain_us"], (name, one)


async def test_stamped_run_states_the_injected_numbers(spark: SparkSession, tmp_path: Path, nodes: Nodes) -> None:
    """Done when: a `fanout primary` stamps; the report states exactly what a cut and removed log records took away."""
    hub = await nodes.primary().begin()
    with publisher(hub.port) as client:
        publish_all(client, updates(0, TOPICS))
    async with Proxy(hub.port) as proxy:
        whole = nodes.secondary(link(hub.port, selector("plant/#", qos=0), settings=QUICK))
        cut_off = nodes.secondary(link(proxy.port, selector("plant/#", qos=0), settings=QUICK), name="edge-2")
        for node in (whole, cut_off):
            await node.begin()
        leaf = nodes.secondary(link(whole.port, selector("plant/#", qos=0), settings=QUICK), name="leaf")
        await leaf.begin()
        await publish_run(hub.port, proxy=proxy, cut_off=cut_off, watching=[whole, cut_off, leaf])
        for node in (leaf, cut_off, whole, hub):
            await asyncio.to_thread(node.stop)
    remove_rows(whole, REMOVED)
    document = report(tmp_path, hub, whole, cut_off, leaf)
    assert_one_clock(document, corrected={node.name: "hub" for node in (whole, cut_off, leaf)})
    assert [(hop["from_node"], hop["to_node"], hop["updates"]) for hop in document["lag"]["hops"]] == [
        ("hub", whole.name, LIVE_BEFORE + CUT + LIVE_AFTER + 2 - REMOVED),
        (whole.name, "leaf", LIVE_BEFORE + CUT + LIVE_AFTER + 2),
    ]

    assert (document["reference"]["name"], document["reference"]["kind"]) == ("hub", "primary")
    live = LIVE_BEFORE + CUT + LIVE_AFTER + 2
    first = target(document, whole)
    assert (first["basis"], first["exact"]) == ("stamped", True)
    figures = first["stamped"]
    assert (figures["expected"], figures["applied"]) == (live, live - REMOVED)
    assert figures["missing"] + figures["unknown"] == REMOVED
    assert (figures["duplicated"], figures["stale"], figures["reobtained"], figures["pending"]) == (0, 0, 0, 0)
    assert {log["node"]: log["absent_rows"] for log in document["logs"]}[whole.name] == REMOVED

    second = target(document, cut_off)
    assert (second["basis"], second["exact"]) == ("stamped", True)
    figures = second["stamped"]
    assert (figures["expected"], figures["applied"]) == (live, live - CUT)
    assert figures["reobtained"] == CUT_TOPICS
    assert figures["missing"] == CUT - CUT_TOPICS
    assert figures["superseded"] == CUT_TOPICS * (CUT_ROUNDS - 1)
    assert (figures["duplicated"], figures["unknown"], figures["pending"]) == (0, 0, 0)
    assert second["final"]["equal"] == TOPICS
    assert second["final"]["equal_percent"] == 100


async def test_a_killed_node_lacks_what_was_published_while_it_was_down(
    spark: SparkSession, tmp_path: Path, nodes: Nodes
) -> None:
    """Done when: SIGKILL in a stream leaves unknown what was published within a second, and missing what came after."""
    hub = await nodes.primary().begin()
    edge = await nodes.secondary(link(hub.port, selector("plant/#", qos=0), settings=QUICK)).begin()
    messages = [(f"plant/message/{number}", b"x") for number in range(300)]

    async def publish(messages: list[tuple[str, bytes]]) -> None:
        with publisher(hub.port) as client:
            await asyncio.to_thread(publish_all, client, messages, retain=False)

    def is_written() -> bool:
        log = edge.document("/v1/status")["log"]
        return bool(log["events_total"]) and bool(log["unsynced_rows"] == 0)

    await wait_until(is_written, what="the events of its start on disc")
    await publish(messages[:LIVE])
    await asyncio.to_thread(edge.kill)
    killed = time.time()
    await wait_until(lambda: time.time() > killed + KILL_UNKNOWN_S, what="the end of what is unknown")
    await publish(messages[LIVE : LIVE + DOWN])
    await edge.begin()
    await publish(messages[LIVE + DOWN :])
    for node in (edge, hub):
        await asyncio.to_thread(node.stop)
    figures = target(report(tmp_path, hub, edge), edge)["stamped"]
    assert figures["expected"] == len(messages)
    assert (figures["missing"], figures["causes"]["restart"]) == (DOWN, DOWN)
    assert figures["applied"] + figures["unknown"] == len(messages) - DOWN


@pytest.mark.mosquitto
async def test_members_of_a_pool_say_of_themselves_what_their_logs_say(
    spark: SparkSession, mosquitto: Mosquitto, tmp_path: Path, nodes: Nodes
) -> None:
    """Done when: the report agrees with `/v1/pool` on who holds what, and names the topic that is apart.

    One member may not read a topic, and nobody repairs that.
    """
    acl = tmp_path / "acl"
    everything = "topic readwrite #\ntopic read $SYS/#\n"
    acl.write_text(f"{everything}user lesser\ntopic deny plant/7\n{everything}")
    mosquitto.settings = [f"acl_file {acl}", "allow_anonymous true"]
    mosquitto.restart()
    ports = [free_port() for _ in range(3)]
    peers = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    members = [
        nodes.secondary(
            link(mosquitto.port, selector("plant/#"), settings=QUICK + 'on_doubt = "serve"\n' + user),
            f'[pool]\nlisten = "127.0.0.1:{port}"\npeers = [{peers}]\nconverge_after_s = 2\n',
            name=f"edge-{number}",
        )
        for number, (port, user) in enumerate(zip(ports, ("", "", 'username = "lesser"\n'), strict=True))
    ]
    for member in members:
        await member.begin()
    with publisher(mosquitto.port) as client:
        await asyncio.to_thread(publish_all, client, updates(0, 50))

    def told() -> list[Any]:
        return list(members[0].document("/v1/pool")["members"])

    def is_told() -> bool:
        return [(one["topics"], one["digest_equal"]) for one in told()] == [(50, True), (50, True), (49, False)]

    await wait_until(is_told, 60, what=lambda: str(told()))
    held = {
        node.name: (one["topics"], one["digest"])
        for node in members
        for one in node.document("/v1/status")["links"][0]["selectors"]
    }
    for node in members:
        await asyncio.to_thread(node.stop)
    document = tmp_path / "report.json"
    directories = [str(node.log_directory) for node in members]
    options = ["--settle", "0", "--json", str(document)]
    answer = CliRunner().invoke(app, ["report", "convergence", *directories, *options])
    assert answer.exit_code == 0, answer.output
    found = json.loads(document.read_text())["convergence"]
    (one,) = found["sets"]
    assert {member["node"]: (member["topics"], member["digest"]) for member in one["members"]} == held
    assert (one["equal"], one["apart"], one["pending"], one["unknown"]) == (49, 1, 0, 0)
    (topic,) = found["apart"]["listed"]
    assert topic["topic"] == "plant/7"
    assert {value["node"] for value in topic["values"] if value["digest"] is None} == {"edge-2"}


@pytest.mark.mosquitto
async def test_first_tier_node_makes_the_tree_below_a_broker_exact(
    spark: SparkSession, mosquitto: Mosquitto, tmp_path: Path, nodes: Nodes
) -> None:
    """Beside a foreign primary a first-tier node stamps, and the report lists exactly what a node below lost.

    What a publisher stamped itself keeps that stamp, through the broker and the tree.
    """
    with publisher(mosquitto.port) as client:
        publish_all(client, updates(0, TOPICS))
    first = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK + "stamp_updates = true\npublisher_stamps = true\n"),
        name="first",
    )
    await first.begin()
    async with Proxy(first.port) as proxy:
        whole = nodes.secondary(link(first.port, selector("plant/#", qos=0), settings=QUICK))
        cut_off = nodes.secondary(link(proxy.port, selector("plant/#", qos=0), settings=QUICK), name="edge-2")
        for node in (whole, cut_off):
            await node.begin()
        own = publish_properties(
            UserProperty=[("unit", "K"), ("fanout-stamp", f"machine-7:7:5:{time.time_ns() // 1000}")]
        )
        with publisher(mosquitto.port) as client, subscriber(whole.port, "plant/own", qos=1) as inbox:
            await asyncio.to_thread(publish_all, client, [("plant/own", b"x")], retain=False, properties=own)
            await asyncio.to_thread(inbox.wait, 1)
        await publish_run(mosquitto.port, proxy=proxy, cut_off=cut_off, watching=[whole, cut_off])
        for node in (cut_off, whole, first):
            await asyncio.to_thread(node.stop)
    document = report(tmp_path, first, whole, cut_off)
    assert_one_clock(document, corrected={node.name: "first" for node in (first, whole, cut_off)})

    live = LIVE_BEFORE + CUT + LIVE_AFTER + 2
    reference = document["reference"]
    assert (reference["name"], reference["kind"]) == ("first", "first_tier")
    ((primary, first_sequence, present, absent),) = [
        (s["primary"], s["first"], s["present"], s["absent"]) for s in reference["sequences"]
    ]
    assert (primary, first_sequence, absent) == ("first", 1, 0)
    assert present >= live
    stamps = {row["stamp_primary"] for row in read_updates(whole.log_directory) if row["topic"] == "plant/own"}
    assert stamps == {"machine-7"}
    for node, lost in ((whole, 0), (cut_off, CUT)):
        found = target(document, node)
        assert found["basis"] == "stamped"
        figures = found["stamped"]
        assert (figures["expected"], figures["applied"]) == (live + 1, live + 1 - lost)
        assert figures["missing"] + figures["reobtained"] == lost
        assert (figures["unknown"], figures["duplicated"], figures["unreferenced"]) == (0, 0, 0)
        assert found["final"]["equal"] == TOPICS
    assert target(document, cut_off)["stamped"]["reobtained"] == CUT_TOPICS
    messages = {f"plant/message/{number}" for number in range(CUT_MESSAGES)}
    assert document["missing"]["total"] == CUT - CUT_TOPICS
    missing = [(one["node"], one["topic"]) for one in pq.read_table(tmp_path / "tables" / "missing").to_pylist()]
    retained = [f"plant/{number}" for number in range(CUT_TOPICS)] * (CUT_ROUNDS - 1)
    assert sorted(missing) == sorted(("edge-2", topic) for topic in [*messages, *retained])


@pytest.mark.mosquitto
async def test_run_beside_a_broker_is_counted(
    spark: SparkSession, mosquitto: Mosquitto, tmp_path: Path, nodes: Nodes
) -> None:
    """Done when: on a Mosquitto primary with a tap, losses are exact, and lag is that behind the tap."""
    with publisher(mosquitto.port) as client:
        publish_all(client, updates(0, TOPICS))
    tap = nodes.tap(link(mosquitto.port, selector("plant/#"), settings=QUICK))
    async with Proxy(mosquitto.port) as proxy:
        cut_off = nodes.secondary(link(proxy.port, selector("plant/#", qos=0), settings=QUICK))
        for node in (tap, cut_off):
            await node.begin()
        await publish_run(mosquitto.port, proxy=proxy, cut_off=cut_off, watching=[cut_off])
    for node in (cut_off, tap):
        await asyncio.to_thread(node.stop)
    document = report(tmp_path, tap, cut_off)

    assert (document["reference"]["name"], document["reference"]["kind"]) == ("tap", "tap")
    assert any("Counted in order, from tap" in statement for statement in document["basis"])
    found = target(document, cut_off)
    assert (found["basis"], found["exact"], found["stamped"]) == ("unstamped", True, None)
    figures = found["unstamped"]
    # Of the first moments nobody says that the node had to get what was published, since clocks may differ.
    assert CUT + LIVE_AFTER <= figures["expected"] <= LIVE_BEFORE + CUT + LIVE_AFTER + 2
    # The last values of the topics came back in the snapshot after the cut.
    assert (figures["missing"], figures["reobtained"], figures["unknown"]) == (CUT - CUT_TOPICS, CUT_TOPICS, 0)
    causes = {cause: updates for cause, updates in figures["causes"].items() if updates}
    assert causes.keys() <= {"new_epoch", "resumed"}, causes
    assert {one["stamped_by"] for one in document["lag"]["propagation"]} == {"tap"}
    assert found["final"] == found["final"] | {"equal": TOPICS, "different": 0, "absent": 0, "extra": 0, "unknown": 0}
