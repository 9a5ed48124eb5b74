"""Probes of real servers: Mosquitto with several configurations, and a fanout node."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from bench.processes import link, selector
from fanout.errors import PrimaryRefused, PrimaryUnreachable
from fanout.probe import runner
from fanout.probe.catalogue import CHECKS, Check
from fanout.probe.client import Target
from fanout.probe.ground import Ground
from fanout.probe.results import Outcome, ProbeReport, Result, VersionReport
from fanout.probe.runner import probe
from tests.support.mosquitto import Mosquitto, find_mosquitto, free_port, load_retained
from tests.support.nodes import Nodes
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]


async def probed(
    port: int,
    *,
    versions: tuple[int, ...] = (5,),
    set_size: int = 50,
    read_filter: str | None = None,
    timeout_s: float = 90.0,
    username: str | None = None,
) -> ProbeReport:
    """Probe a server on loopback."""
    return await probe(
        Target("127.0.0.1", port, username, None),
        address=f"mqtt://127.0.0.1:{port}",
        versions=versions,
        prefix="probe",
        set_size=set_size,
        read_filter=read_filter,
        timeout_s=timeout_s,
    )


def outcomes(report: VersionReport, *but: str) -> set[Outcome]:
    """Return how all checks ended, but for some."""
    return {one.result.outcome for one in report.findings if one.check not in but}


def seen(report: VersionReport, check: str) -> tuple[Outcome, str]:
    """Return how a check ended, and what was seen."""
    result = report.result(check)
    assert result is not None, check
    return result.outcome, result.seen


def retained_topics(port: int) -> set[str]:
    """Return the topics that a server has retained messages for."""
    with RawReader(port) as reader:
        reader.subscribe("#")
        return set(reader.values)


async def test_mosquitto_passes_and_nothing_stays(mosquitto: Mosquitto) -> None:
    """The limits of its defaults are found: its queue cuts a set at QoS 1, and what waits for a session."""
    report = await probed(mosquitto.port, versions=(5, 4), set_size=1_100)
    five, four = report.versions
    assert report.server.startswith("mosquitto version")
    assert (report.complete, report.left_behind) == (True, "")
    assert {one.check for one in five.findings} >= {
        one.name for one in CHECKS if 5 in one.versions and not one.for_filter
    }
    assert outcomes(five, "many messages kept") == {Outcome.PASSED}
    assert outcomes(four, "large set, QoS 1", "many messages kept", "control, bridge bit") == {Outcome.PASSED}
    assert seen(four, "large set, QoS 1") == (Outcome.FAILED, "1,020 of 1,100 came")
    assert seen(five, "many messages kept") == (Outcome.FAILED, "1,000 of 1,100 came")
    assert seen(five, "marker") == (Outcome.PASSED, "behind all 1,100")
    assert seen(five, "Receive Maximum") == (Outcome.PASSED, "20")
    assert retained_topics(mosquitto.port) == set()


async def test_server_without_retained_messages(mosquitto: Mosquitto) -> None:
    """CONNACK says so over MQTT 5; over MQTT 3.1.1 the server closes the connection. What needs a set is not tried."""
    mosquitto.settings = ["retain_available false"]
    mosquitto.restart()
    five, four = (await probed(mosquitto.port, versions=(5, 4))).versions
    assert seen(five, "Retain Available") == (Outcome.NOT_AVAILABLE, "0")
    assert seen(five, "retained message") == (Outcome.NOT_AVAILABLE, "CONNACK: Retain Available 0")
    assert seen(four, "retained message")[0] is Outcome.FAILED
    for report in (five, four):
        assert seen(report, "marker") == (Outcome.NOTHING_TO_TEST, "it needs: retained by #")
        assert seen(report, "messages kept")[0] is Outcome.PASSED


async def test_user_that_may_not_publish(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """What needs a message of our own is not permitted; the set that is there can still be judged."""
    acl = tmp_path / "acl"
    acl.write_text("topic read #\ntopic read $SYS/#\ntopic readwrite fanout/control/#\n")
    mosquitto.settings = [f"acl_file {acl}"]
    mosquitto.restart()
    five, four = (await probed(mosquitto.port, versions=(5, 4), read_filter="plant/#")).versions
    assert seen(five, "control message")[0] is Outcome.NOT_PERMITTED
    assert "0x87" in seen(five, "control message")[1]
    assert seen(four, "control message")[1].endswith("does not come back")
    for report in (five, four):
        assert seen(report, "retained message") == (Outcome.NOT_PERMITTED, "it needs: control message")
        assert seen(report, "set of --filter") == (
            Outcome.NOTHING_TO_TEST,
            "nothing to test: it brings no retained message",
        )
        assert Outcome.FAILED not in outcomes(report)
        assert {one.meaning for one in report.findings if not one.result.outcome.was_tested} == {""}
        assert report.writable_prefix == "fanout/control"


async def test_prefix_of_the_user_name_is_proposed(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Where each user has a branch of its own; a name that is no topic is not tried."""
    acl = tmp_path / "acl"
    acl.write_text("topic read #\npattern readwrite %u/#\n")
    mosquitto.settings = [f"acl_file {acl}", "allow_anonymous true"]
    mosquitto.restart()
    for username, prefix in (("reader", "reader"), ("$no/+/#", None)):
        (report,) = (await probed(mosquitto.port, username=username)).versions
        assert report.writable_prefix == prefix


async def test_set_that_is_there_is_read_as_it_is(mosquitto: Mosquitto) -> None:
    """Its topics are counted, PINGRESP comes behind them, and nobody has to publish for it."""
    load_retained(mosquitto.port, [(f"plant/{index}", b"1") for index in range(20)])
    (report,) = (await probed(mosquitto.port, read_filter="plant/+")).versions
    assert seen(report, "set of --filter") == (Outcome.PASSED, "20 topics, PINGRESP behind all 20")
    assert retained_topics(mosquitto.port) == {f"plant/{index}" for index in range(20)}


async def test_small_queue_cuts_a_set_at_qos_1(mosquitto: Mosquitto) -> None:
    """Receive Maximum 20 and 10 in the queue."""
    mosquitto.settings = ["max_queued_messages 10"]
    mosquitto.restart()
    (report,) = (await probed(mosquitto.port, versions=(4,))).versions
    assert seen(report, "large set, QoS 1") == (Outcome.FAILED, "30 of 50 came")
    assert seen(report, "large set, QoS 0")[0] is Outcome.PASSED


async def test_time_is_up(mosquitto: Mosquitto) -> None:
    """What was not tested says so, and what was retained is cleared all the same."""
    report = await probed(mosquitto.port, timeout_s=0.3, set_size=20_000)
    assert not report.complete
    assert seen(report.versions[0], "expiry removes")[0] is Outcome.NOT_TESTED
    assert (report.left_behind, retained_topics(mosquitto.port)) == ("", set())


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


async def test_interruption_that_a_check_kept_to_itself(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.wait_for` of Python 3.11 returns what came at the very moment of Ctrl-C: the probe ends all the same."""
    made: list[str] = []

    async def swallow(ground: Ground) -> Result:
        made.append("first")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Result(Outcome.PASSED, "")

    async def go_on(ground: Ground) -> Result:
        made.append("second")
        return Result(Outcome.PASSED, "")

    checks = (Check("swallows", swallow, "", ""), Check("goes on", go_on, "", ""))
    monkeypatch.setattr(runner, "CHECKS", checks)
    probing = asyncio.create_task(probed(mosquitto.port))
    await wait_until(lambda: made, 30, what="the first check")
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    assert made == ["first"]


async def test_server_that_refuses(mosquitto: Mosquitto) -> None:
    """The error says what to give."""
    mosquitto.settings = ["allow_anonymous false"]
    mosquitto.restart()
    with pytest.raises(PrimaryRefused, match=r"refuses the connection: .*[Nn]ot authori[sz]ed") as caught:
        await probed(mosquitto.port, versions=(5, 4))
    assert caught.value.reason_code == 0x87
    assert "--username" in caught.value.hint


async def test_nothing_listens() -> None:
    """The error says that the connection was refused."""
    with pytest.raises(PrimaryUnreachable, match=r"cannot connect to .*: connection refused"):
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
    """Our primary passes; our secondary lets nobody write into a selector, and what it mirrors can be read."""
    load_retained(mosquitto.port, [(f"plant/{index}", b"1") for index in range(20)])
    nodes = Nodes(tmp_path)
    try:
        primary = nodes.primary(log=False)
        secondary = nodes.secondary(link(mosquitto.port, selector("#")), log=False)
        await asyncio.gather(primary.begin(), secondary.begin())
        report = await probed(primary.port, versions=(5, 4))
        assert report.server.startswith("fanout version")
        five, four = report.versions
        assert outcomes(five) == {Outcome.PASSED}, five
        assert outcomes(four, "control, bridge bit") == {Outcome.PASSED}, four
        report = await probed(secondary.port, versions=(5, 4), read_filter="plant/#")
        for version in report.versions:
            assert seen(version, "set of --filter") == (Outcome.PASSED, "20 topics, PINGRESP behind all 20")
            assert seen(version, "control message")[0] is Outcome.NOT_PERMITTED
    finally:
        await asyncio.to_thread(nodes.end)
