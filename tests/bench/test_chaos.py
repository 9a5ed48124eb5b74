"""What a chaos run checks with: each rule finds what it is there for, and lets pass what is right."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.client import Message, pack_properties, read_retained
from bench.chaos.explain import Window
from bench.chaos.plan import draw_faults, draw_setting
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
        return [setting, *(draw_faults(draw, setting.edges) for _ in range(20))]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


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


def test_a_fault_explains_what_follows_it_where_it_was() -> None:
    """For a while, at its own node; a fault of the primary at every node."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    end = begin + timedelta(seconds=5)
    cut, kill = Window("edge-a", "cut", begin, end), Window("primary", "kill", begin, end)
    assert cut.explains("edge-a", end + timedelta(seconds=10))
    assert not cut.explains("edge-b", end)
    assert not cut.explains("edge-a", begin - timedelta(seconds=1))
    assert not cut.explains("edge-a", end + timedelta(minutes=1))
    assert kill.explains("edge-b", end)
    above = Window("edge-b", "kill", begin, end)
    assert above.explains("leaf", end)
    assert not above.explains("edge-a", end)


# --- the client ---


@pytest.mark.mosquitto
async def test_reader_reads_what_is_retained(mosquitto: Mosquitto) -> None:
    """With properties and the rest of the expiry, whatever the filters overlap in."""
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/a", b"1"), ("plant/b", b"2"), ("office/c", b"3")])
    values = await read_retained(mosquitto.port, "reader", ["plant/#", "plant/a"])
    assert {topic: one.payload for topic, one in values.items()} == {"plant/a": b"1", "plant/b": b"2"}
    assert pack_properties() == b"\x00"
