"""Probes of real servers: Mosquitto with several configurations, a fanout node, and fake primaries."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.processes import link, selector
from fanout.config import Address
from fanout.errors import PrimaryRefused, PrimaryUnreachable
from fanout.link.model.evidence import Evidence
from fanout.link.snapshot.narrowing import is_likely_limit
from fanout.mqtt.packets import Pingresp
from fanout.probe.results import Outcome, ProbeReport, Trial
from fanout.probe.runner import SET_SIZE, probe
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, make_config
from tests.link.fake_server import FakeServer
from tests.support.mosquitto import Mosquitto, find_mosquitto, free_port, load_retained
from tests.support.nodes import Nodes
from tests.support.raw_reader import RawReader

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]


async def probed(
    port: int,
    *,
    versions: tuple[int, ...] = (5,),
    set_size: int = 50,
    topic_filter: str = "#",
    timeout_s: float = 90.0,
    **changes: Any,
) -> ProbeReport:
    """Probe a server on loopback."""
    config = replace(
        make_config(Selector(topic_filter), snapshot_quiet_s=1.0),
        primaries=(Address("mqtt", "127.0.0.1", port),),
        **changes,
    )
    return await probe(config, versions=versions, prefix="probe", set_size=set_size, timeout_s=timeout_s)


def outcomes(trial: Trial) -> dict[str, Outcome]:
    """Return how the checks of a trial ended."""
    return {one.check: one.outcome for one in trial.findings}


def seen(trial: Trial, check: str) -> str:
    """Return what was seen in a check."""
    return next(one.seen for one in trial.findings if one.check == check)


def retained_topics(port: int) -> set[str]:
    """Return the topics that a server has retained messages for."""
    with RawReader(port) as reader:
        reader.subscribe("#")
        return set(reader.values)


def test_the_set_is_no_number_that_limits_are_set_to() -> None:
    """Such a number would be taken for a limit of the primary."""
    assert not is_likely_limit(SET_SIZE)


@pytest.mark.parametrize("topic_filter", ["#", "plant/#"])
async def test_mosquitto_passes_and_nothing_stays(mosquitto: Mosquitto, topic_filter: str) -> None:
    """The first trial has proof, so it is the only one; the filter need not match the topics of the probe."""
    load_retained(mosquitto.port, [(f"plant/{index}", b"1") for index in range(20)])
    report = await probed(mosquitto.port, versions=(5, 4), topic_filter=topic_filter)
    (trial,) = report.trials
    assert report.server.startswith("mosquitto version")
    assert (report.complete, report.left_behind, trial.evidence) == (True, "", Evidence.MARKER)
    assert trial.is_proved
    assert list(outcomes(trial)) == [
        "snapshot",
        "evidence",
        "heartbeats",
        "updates",
        "without RETAIN",
        "deleted topic",
        "audit",
    ]
    assert set(outcomes(trial).values()) == {Outcome.PASSED}, trial.findings
    assert seen(trial, "snapshot").startswith("70 topics")
    assert retained_topics(mosquitto.port) == {f"plant/{index}" for index in range(20)}


async def test_over_mqtt_3_1_1_the_bridge_bit_costs_heartbeats(mosquitto: Mosquitto) -> None:
    """Mosquitto does not return a bridge's own messages; its version is the sentinel, so there is proof anyway."""
    (trial,) = (await probed(mosquitto.port, versions=(4,))).trials
    assert trial.evidence is Evidence.BARRIER
    assert outcomes(trial)["heartbeats"] is Outcome.FAILED
    assert outcomes(trial)["updates"] is Outcome.PASSED


async def test_server_without_retained_messages(mosquitto: Mosquitto) -> None:
    """What cannot be tested says why; an empty set can be proved."""
    mosquitto.settings = ["retain_available false"]
    mosquitto.restart()
    (trial,) = (await probed(mosquitto.port)).trials
    assert outcomes(trial)["messages of this probe"] is Outcome.NOT_TESTED
    assert seen(trial, "messages of this probe").startswith("the primary takes no retained messages")


@pytest.mark.parametrize("version", [4, 5])
async def test_user_that_may_not_publish(mosquitto: Mosquitto, tmp_path: Path, version: int) -> None:
    """The set that is there is judged; what a link needs more rights for is told."""
    load_retained(mosquitto.port, [(f"plant/{index}", b"1") for index in range(20)])
    acl = tmp_path / "acl"
    acl.write_text("topic read #\ntopic read $SYS/#\n")
    mosquitto.settings = [f"acl_file {acl}", "persistence true"]
    mosquitto.stop()
    mosquitto.settings = [f"acl_file {acl}"]
    mosquitto.start()
    (trial, *_) = (await probed(mosquitto.port, versions=(version,), topic_filter="plant/#")).trials
    assert outcomes(trial)["messages of this probe"] is Outcome.NOT_TESTED
    assert "fanout probe --prefix names another" in seen(trial, "messages of this probe")
    assert outcomes(trial)["heartbeats"] is Outcome.FAILED
    assert trial.evidence is Evidence.BARRIER
    assert trial.is_proved


async def test_filter_that_takes_a_part_of_the_probes_topics(mosquitto: Mosquitto) -> None:
    """They overlap with the selector, so they cannot have one of their own."""
    (trial,) = (await probed(mosquitto.port, topic_filter="+/+/new")).trials
    assert "give another --prefix" in seen(trial, "messages of this probe")
    assert trial.is_proved


async def test_nothing_is_published_where_that_is_not_wanted(mosquitto: Mosquitto) -> None:
    """With `--set-size 0` there are heartbeats only."""
    (trial,) = (await probed(mosquitto.port, set_size=0)).trials
    assert seen(trial, "messages of this probe") == "--set-size is 0"
    assert outcomes(trial)["updates"] is Outcome.NOT_TESTED
    assert trial.is_proved


async def test_time_is_up(mosquitto: Mosquitto) -> None:
    """What is known is told, and what was retained is cleared all the same."""
    report = await probed(mosquitto.port, timeout_s=0.2, set_size=20_000)
    assert not report.complete
    assert (report.left_behind, retained_topics(mosquitto.port)) == ("", set())


async def test_time_is_up_in_a_snapshot() -> None:
    """At a primary that sends nothing behind SUBACK the link is never live; it says how far it came."""
    primary = FakePrimary(retained={b"plant/1": b"x"}, swallow=(Pingresp,))
    async with FakeServer(primary, beside=FakePrimary()) as server:
        report = await probed(server.port, timeout_s=3.0, set_size=0, topic_filter="plant/#")
    (trial,) = report.trials
    assert not report.complete
    assert trial.reason.startswith("it was not live when the time was up: the link was ")
    assert outcomes(trial)["snapshot"] is Outcome.NOT_TESTED


async def test_interrupted_probe_cleans_up(mosquitto: Mosquitto) -> None:
    """Ctrl-C cancels the task: what it retained is cleared before it ends."""
    loaded: list[set[str]] = []

    async def is_loaded() -> None:
        while not loaded:
            if topics := await asyncio.to_thread(retained_topics, mosquitto.port):
                loaded.append(topics)

    probing = asyncio.create_task(probed(mosquitto.port, set_size=2_000))
    await asyncio.wait_for(is_loaded(), 30)
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    assert retained_topics(mosquitto.port) == set()


async def test_server_that_refuses(mosquitto: Mosquitto) -> None:
    """The error says what to give."""
    mosquitto.settings = ["allow_anonymous false"]
    mosquitto.restart()
    with pytest.raises(PrimaryRefused, match=r"[Nn]ot authori[sz]ed"):
        await probed(mosquitto.port, versions=(5, 4))


async def test_nothing_listens() -> None:
    """The error says that the connection was refused."""
    with pytest.raises(PrimaryUnreachable, match=r"cannot connect to .*: [Cc]onnection refused"):
        await probed(free_port())


async def test_server_of_another_kind() -> None:
    """What closes the connection without CONNACK is no MQTT server."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        with pytest.raises(PrimaryUnreachable, match="does not answer as an MQTT server"):
            await probed(server.sockets[0].getsockname()[1], versions=(5, 4))


async def test_fanout_nodes(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Our primary has a manifest; our secondary lets nobody write into a selector, and its set can be proved."""
    load_retained(mosquitto.port, [(f"plant/{index}", b"1") for index in range(20)])
    nodes = Nodes(tmp_path)
    try:
        primary = nodes.primary(log=False)
        secondary = nodes.secondary(link(mosquitto.port, selector("plant/#")), log=False)
        await asyncio.gather(primary.begin(), secondary.begin())
        report = await probed(primary.port, versions=(5, 4))
        (trial,) = report.trials
        assert report.server.startswith("fanout version")
        assert trial.evidence is Evidence.MANIFEST
        assert set(outcomes(trial).values()) == {Outcome.PASSED}, trial.findings
        (trial,) = (await probed(secondary.port, topic_filter="plant/#")).trials
        assert trial.is_proved
        assert seen(trial, "snapshot").startswith("70 topics")
    finally:
        await asyncio.to_thread(nodes.end)
