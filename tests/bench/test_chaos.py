"""What a chaos run checks with: each rule finds what it is there for, and lets pass what is right."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.client import Message, pack_properties, read_retained
from bench.chaos.explain import Evidence, Window, judge
from bench.chaos.plan import NARROW, ROLL_BACK, Setting, draw_faults, draw_setting
from bench.chaos.probe import Edge, differences
from bench.chaos.truth import Truth, Value
from bench.chaos.witness import Witness
from bench.processes import Mosquitto, Node
from tests.support.mosquitto import publish_all, publisher

LONG_AGO = 0.0


def message(topic: str, payload: bytes, **changes: Any) -> Message:
    """Return a PUBLISH as a subscriber gets it."""
    plain: dict[str, Any] = {"qos": 1, "retain": False, "dup": False, "properties": {}, "expiry_s": None}
    return Message(topic, payload, **{**plain, **changes})


def truth_of(**values: bytes) -> Truth:
    """Return a ledger in which these values, of topics below `plant/`, are certain since long."""
    truth = Truth()
    truth.learn({f"plant/{name}": message(f"plant/{name}", payload) for name, payload in values.items()}, since=-1.0)
    return truth


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    """Return a secondary that is never started."""
    return Edge(Node(tmp_path, role="secondary", name="edge"), {"plant": "site/"}, horizon_s=4.0)


# --- the plan ---


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same configuration and faults, another one others."""

    def drawn(seed: int) -> list[object]:
        draw = random.Random(seed)
        setting = draw_setting(draw, random.Random(seed))
        return [setting, *(draw_faults(draw, setting) for _ in range(20))]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize("primary_role", ["mosquitto", "fanout"])
def test_a_primary_that_is_asked_for_replaces_the_one_that_was_drawn(primary_role: str) -> None:
    """In every run, with faults of the same targets; only a Mosquitto has a short queue, and a node that stamps."""
    stamped = set()
    for seed in range(40):
        draws = random.Random(seed), random.Random(seed)
        asked = draw_setting(draws[0], random.Random(seed), primary_role=primary_role)
        drawn = draw_setting(draws[1], random.Random(seed))
        assert asked.primary_role == primary_role
        assert asked.has_leaf == drawn.has_leaf
        faults = [draw_faults(each, setting) for each, setting in zip(draws, (asked, drawn), strict=True)]
        targets = [[fault.target for fault in together] for together, _ in faults]
        assert targets[0] == targets[1]
        if primary_role == drawn.primary_role:
            assert asked == drawn
            assert faults[0] == faults[1]
        stamped.add(asked.stamped)
        if asked.stamped:
            assert asked.has_leaf
        if primary_role == "fanout":
            assert (asked.max_queued_messages, asked.stamped) == (0, False)
    assert (True in stamped) == (primary_role == "mosquitto")


def test_only_a_mosquitto_has_its_rights_narrowed_and_its_database_rolled_back() -> None:
    """In some runs each; a fanout primary in none."""
    kinds: dict[str, set[str]] = {"mosquitto": set(), "fanout": set()}
    for seed in range(40):
        draw = random.Random(seed)
        setting = draw_setting(draw, random.Random(seed))
        for _ in range(20):
            kinds[setting.primary_role] |= {fault.kind for fault in draw_faults(draw, setting)[0]}
    assert kinds["mosquitto"] - kinds["fanout"] == {NARROW, ROLL_BACK}
    assert kinds["fanout"] <= kinds["mosquitto"]


# --- the truth ---


def test_a_value_is_certain_from_its_acknowledgement_on() -> None:
    """Under way it is not, nor is what changed later than asked for."""
    truth = truth_of(a=b"1")
    assert truth.is_stable("plant/a", since=LONG_AGO)
    truth.sent("plant/a", Value(b"2"))
    assert not truth.is_stable("plant/a", since=time.monotonic())
    truth.acknowledged("plant/a", Value(b"2"))
    assert not truth.is_stable("plant/a", since=LONG_AGO)
    assert truth.is_stable("plant/a", since=time.monotonic())
    assert truth.held("plant/a") == Value(b"2")


def test_nothing_is_certain_of_a_killed_primary() -> None:
    """Until it was read; and then from its start on."""
    truth = truth_of(a=b"1", b=b"2")
    truth.begin_life()
    assert not truth.is_stable("plant/a", since=time.monotonic())
    started = time.monotonic()
    truth.learn({"plant/a": message("plant/a", b"0")}, since=started)
    assert truth.held("plant/a") == Value(b"0")
    assert truth.held("plant/b") is None
    assert truth.is_stable("plant/b", since=started)
    assert not truth.is_stable("plant/b", since=started - 1)


def test_nothing_is_certain_around_an_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and behind it there is."""
    now = time.monotonic()
    for left_s, certain in ((100, True), (1, False), (-1, False), (-100, True)):
        truth = truth_of()
        value = Value(b"1", expires=now + 200)
        truth.sent("plant/a", value)
        truth.acknowledged("plant/a", value)
        with monkeypatch.context() as later:
            later.setattr(time, "monotonic", lambda left_s=left_s: now + 200 - left_s)
            assert truth.is_stable("plant/a", since=time.monotonic()) is certain
            assert (truth.held("plant/a") is not None) is (left_s > 0)


def test_nothing_is_certain_behind_a_value_that_expired_before_it_was_acknowledged() -> None:
    """The primary may have left the one before; the next value is certain again."""
    truth = truth_of(a=b"1")
    late = Value(b"2", expires=time.monotonic() - 100)
    for value, certain in ((late, False), (Value(b"3"), True)):
        truth.sent("plant/a", value)
        truth.acknowledged("plant/a", value)
        assert truth.is_stable("plant/a", since=time.monotonic()) is certain


# --- the probe ---


@pytest.mark.parametrize(
    "served",
    [
        [],
        [message("site/plant/a", b"old")],
        [message("site/plant/a", b"1", properties={"ContentType": "text/plain"})],
        [message("site/plant/a", b"1", expiry_s=5)],
        [message("site/plant/a", b"1"), message("site/plant/gone", b"1")],
    ],
    ids=["missing", "another value", "another property", "an expiry", "a ghost"],
)
def test_what_is_not_equal_is_found(edge: Edge, served: list[Message]) -> None:
    """A value that is missing, differs in what a user sees, or should not be there."""
    wrong = differences(edge, {one.topic: one for one in served}, truth_of(a=b"1"), since=LONG_AGO)
    assert len(wrong) == 1


def test_what_is_equal_or_uncertain_is_not_found(edge: Edge) -> None:
    """Topics outside the selectors and topics that just changed included."""
    truth = truth_of(a=b"1", b=b"2")
    truth.learn({"office/a": message("office/a", b"3"), "plant/a": message("plant/a", b"1")}, since=-1.0)
    truth.sent("plant/b", Value(b"4"))
    assert differences(edge, {"site/plant/a": message("site/plant/a", b"1")}, truth, since=LONG_AGO) == []


# --- the witness ---


class Seen:
    """A witness without a connection, and what it found."""

    def __init__(self, truth: Truth) -> None:
        self.found: list[str] = []
        self.witness = Witness(
            "witness",
            port=0,
            filters=("#",),
            durable=True,
            truth=truth,
            topic_at_primary=lambda topic: topic,
            violated=self.found.append,
        )

    def get(self, payload: bytes, **changes: Any) -> None:
        """Receive a value of the one topic."""
        self.witness.receive(message("plant/a", payload, **changes))


@pytest.fixture
def seen() -> Seen:
    """Return a witness of a topic of which the values 1 and 2 were published once, and the value 3 twice."""
    truth = truth_of()
    for payload in (b"1", b"2", b"3", b"3"):
        truth.sent("plant/a", Value(payload))
    return Seen(truth)


def test_witness_finds_a_value_that_comes_twice(seen: Seen) -> None:
    """In one life of the topic, more often than it was published, or as a retained copy."""
    seen.get(b"1", retain=True)
    seen.get(b"1")
    assert "got the value 1 of plant/a 2 times" in seen.found.pop()
    seen.get(b"3")
    seen.get(b"3")
    assert not seen.found
    seen.get(b"3")
    assert seen.found


def test_witness_knows_what_came_with_dup_only(seen: Seen) -> None:
    """It may have been lost with a connection before; the value in front of it may come again, behind it."""
    seen.get(b"1")
    seen.get(b"2", dup=True)
    seen.get(b"2", dup=True)
    seen.witness._truth.begin_life()
    seen.get(b"1")
    assert not seen.found


def test_witness_finds_an_older_value_after_a_newer_one(seen: Seen) -> None:
    """Unless the primary was restarted after the newer one was published."""
    seen.get(b"2")
    seen.get(b"1")
    assert "got the value 1 of plant/a after 2" in seen.found.pop()
    seen.get(b"2")
    seen.witness._truth.begin_life()
    seen.get(b"1")
    assert not seen.found


def test_witness_goes_by_the_life_in_which_the_newer_value_came(seen: Seen) -> None:
    """Published again behind a restart, it has not come again while the session that the primary kept is caught up."""
    seen.get(b"3")
    seen.witness._truth.begin_life()
    seen.witness._truth.sent("plant/a", Value(b"3"))
    seen.get(b"2")
    seen.get(b"3")
    assert not seen.found
    seen.get(b"2")
    assert "got the value 2 of plant/a after 3" in seen.found.pop()


def test_witness_lets_pass_what_is_right(seen: Seen) -> None:
    """Duplicates that are marked, and a value that comes again after the topic was gone."""
    seen.get(b"1")
    seen.get(b"1", dup=True)
    seen.get(b"")
    assert seen.witness.values == {}
    seen.get(b"1")
    seen.get(b"2")
    assert not seen.found
    assert seen.witness.values["plant/a"].payload == b"2"


async def test_witness_does_not_take_a_session_for_its_own_that_it_was_not_told_of() -> None:
    """A CONNECT without an answer may have made one without subscriptions, where a killed server had forgotten it."""
    connects: asyncio.Queue[int] = asyncio.Queue()
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        head = await reader.readexactly(2)
        connects.put_nowait((await reader.readexactly(head[1]))[7] & 2)
        if count == 1:
            writer.write(b"\x20\x03\0\0\0")
            head = await reader.readexactly(2)
            body = await reader.readexactly(head[1])
            writer.write(b"\x90\x04" + body[:2] + b"\0\x01")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        witness = Witness(
            "durable",
            port=port,
            filters=("#",),
            durable=True,
            truth=truth_of(),
            topic_at_primary=str,
            violated=pytest.fail,
        )
        running = asyncio.create_task(witness.run())
        async with asyncio.timeout(30):
            assert [await connects.get() for _ in range(3)] == [2, 0, 2]
        running.cancel()
        await asyncio.wait([running])


# --- the faults and the reports ---


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = BEGIN + timedelta(seconds=5)
LATER = END + timedelta(minutes=1)
PLAIN = replace(draw_setting(random.Random(17), random.Random(17)), max_queued_messages=0, version=5)
TIGHT = replace(PLAIN, max_queued_messages=20, audit_interval_s=3.0)
CUT = Window("edge-a", "cut", BEGIN, END)
CAUSES = {"restart": 0, "new_epoch": 0, "resumed": 0, "away": 0, "audit": 0, "upstream": 0, "live": 0}


def document(*, stamped: bool = False, node: str = "edge-a", gaps: int = 0, absent: int = 0, **causes: int) -> Any:
    """Return a report on completeness of one node, with as many missing updates as the causes add up to."""
    figures = {"missing": sum(causes.values()), "causes": CAUSES | causes}
    target = {
        "node": node,
        "filter": "plant/#",
        "stamped": figures if stamped else None,
        "unstamped": None if stamped else figures,
        "final": {"different": 0, "absent": absent, "extra": 0},
    }
    return {"logs": [{"node": node, "gaps": gaps, "absent_rows": 0}], "targets": [target]}


def missing_row(cause: str, **changes: Any) -> dict[str, Any]:
    """Return a row of the table `missing`, of an update that was lost within the cut."""
    return {"node": "edge-a", "topic": "plant/1/v", "origin": BEGIN, "known": True, "cause": cause} | changes


def epoch_row(begin: datetime, **changes: Any) -> dict[str, Any]:
    """Return a row of the table `snapshots`."""
    return {"node": "edge-a", "node_epoch": 1, "begin": begin} | changes


def stall_row(at: datetime, *, node: str = "edge-a") -> dict[str, Any]:
    """Return a row of the table `stalls`."""
    return {"node": node, "topic": "plant/1/v", "first_lacking": at}


def judged(setting: Setting = PLAIN, *, windows: Sequence[Window] = (CUT,), **tables: Any) -> list[str]:
    """Return what is found in these tables, of a run with these faults: one secondary was cut off once."""
    evidence = {"documents": [], "missing": [], "snapshots": [], "stalls": [], **tables}
    return judge(Evidence(**evidence), windows, setting=setting)


def test_a_fault_explains_what_follows_it_where_it_was() -> None:
    """For as long as it may go unnoticed, at its own node; a fault of the primary at every node."""
    cut, kill = CUT, Window("primary", "kill", BEGIN, END)
    for window, node, at, explained in (
        (cut, "edge-a", END + timedelta(seconds=3), True),
        (cut, "edge-a", END + timedelta(seconds=5), False),
        (cut, "edge-a", BEGIN - timedelta(seconds=1), False),
        (cut, "edge-b", END, False),
        (kill, "edge-b", END, True),
        (Window("edge-b", "kill", BEGIN, END), "leaf", END, True),
        (Window("edge-b", "kill", BEGIN, END), "edge-a", END, False),
        (Window("edge-a", "cut witness", BEGIN, END), "edge-a", END, False),
    ):
        assert window.explains(node, at, horizon_s=4.0) is explained


def test_an_update_lost_while_live_is_found_without_stamps() -> None:
    """By its lower bound alone: no row says when it was, and no fault excuses it."""
    assert judged(documents=[document(resumed=3)]) == []
    assert judged(documents=[document(resumed=3, live=2)]) == ["edge-a plant/# lost 2 updates while it was live"]


def test_a_primary_that_drops_silently_explains_what_is_lost_while_live() -> None:
    """Its queue is short; below a node that stamps it explains nothing."""
    assert judged(TIGHT, documents=[document(live=2)]) == []
    lost = [missing_row("live", node="leaf")]
    assert len(judged(TIGHT, documents=[document(stamped=True, node="leaf", live=1)], missing=lost)) == 1


def test_narrowed_rights_explain_what_is_lost_while_live() -> None:
    """The primary does not say what it leaves out; below a node that stamps they explain nothing."""
    narrowed = Window("primary", NARROW, BEGIN, END)
    assert judged(windows=[narrowed], documents=[document(live=2)]) == []
    lost = [missing_row("live", node="leaf")]
    stamped = document(stamped=True, node="leaf", live=1)
    assert len(judged(windows=[narrowed], documents=[stamped], missing=lost)) == 1


def test_an_update_lost_while_live_is_found_by_its_stamp() -> None:
    """Within the time of a fault too, for then the log says what the link was doing; not where the log has a gap."""
    explained = [missing_row("new_epoch"), missing_row("upstream"), missing_row("live", known=False)]
    assert judged(documents=[document(stamped=True, new_epoch=1, upstream=1, live=1)], missing=explained) == []
    (found,) = judged(documents=[document(stamped=True, live=1)], missing=[missing_row("live")])
    assert found == "edge-a lost an update of plant/1/v at 00:00:00.000000 while it was live"


def test_an_epoch_needs_a_fault_unless_it_is_the_first_of_its_process() -> None:
    """A kill leaves another process, which begins one."""
    rows = [epoch_row(BEGIN - timedelta(minutes=1)), epoch_row(END), epoch_row(LATER, node_epoch=2)]
    assert judged(snapshots=rows) == []
    (found,) = judged(snapshots=[*rows, epoch_row(LATER, node_epoch=2)])
    assert found == "an epoch of edge-a began at 00:01:05.000000 without a fault"


def test_a_stalled_topic_needs_a_fault() -> None:
    """At its node, or above."""
    assert judged(stalls=[stall_row(BEGIN)]) == []
    assert judged(stalls=[stall_row(LATER)]) == ["plant/1/v stalled at edge-a from 00:01:05.000000 on without a fault"]
    assert len(judged(stalls=[stall_row(BEGIN, node="edge-b")])) == 1


def test_gaps_and_final_values_are_judged_once() -> None:
    """A gap needs a kill; final values have to be equal whatever happened; a log counts once, whoever refers to it."""
    found = judged(documents=[document(gaps=1), document(gaps=1, absent=2)])
    assert found == [
        "the log of edge-a has 1 gaps after 0 kills",
        "final values of edge-a plant/#: {'different': 0, 'absent': 2, 'extra': 0}",
    ]


# --- the client ---


@pytest.mark.mosquitto
async def test_reader_reads_what_is_retained(mosquitto: Mosquitto) -> None:
    """With properties and the rest of the expiry, whatever the filters overlap in."""
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/a", b"1"), ("plant/b", b"2"), ("office/c", b"3")])
    values = await read_retained(mosquitto.port, "reader", ["plant/#", "plant/a"])
    assert {topic: one.payload for topic, one in values.items()} == {"plant/a": b"1", "plant/b": b"2"}
    assert pack_properties() == b"\x00"
