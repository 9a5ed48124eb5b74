"""How a node goes: from serving, over draining, to stopping."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.errors import RequestRefused
from fanout.node.drain import Drain, NodePhase


def drain_of(seconds: float) -> Drain:
    """Return a drain that nobody has asked for."""
    return Drain(seconds=seconds, logger=structlog.get_logger("test"))


async def over(drain: Drain) -> bool:
    """Return whether the node is to stop, once everything that is due has happened."""
    waiting = asyncio.create_task(drain.wait_over())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


async def test_nobody_asked() -> None:
    """It serves, with no end in sight."""
    drain = drain_of(3600)
    assert (drain.phase, drain.seconds_left, await over(drain)) == (NodePhase.SERVING, 0.0, False)


async def test_draining_takes_its_time() -> None:
    """The phase changes at once, the end comes when the time is over."""
    drain, short = drain_of(3600), drain_of(0.05)
    with capture_logs() as lines:
        drain.begin()
    assert drain.phase is NodePhase.DRAINING
    assert 3000 < drain.seconds_left <= 3600
    assert not await over(drain)
    assert [(line["event"], line["seconds"]) for line in lines] == [("draining", 3600)]
    short.begin()
    assert short.phase is NodePhase.DRAINING
    async with asyncio.timeout(60):
        await short.wait_over()
    assert (short.phase, short.seconds_left) == (NodePhase.STOPPING, 0.0)


async def test_asking_twice_does_not_begin_again() -> None:
    """Neither while it drains nor afterwards."""
    drain = drain_of(3600)
    drain.begin()
    left = drain.seconds_left
    drain.begin()
    assert drain.seconds_left <= left
    drain.end()
    drain.begin()
    assert drain.phase is NodePhase.STOPPING


async def test_end_does_not_wait() -> None:
    """Whoever is in a hurry goes from either phase to the end."""
    for begins in (True, False):
        drain = drain_of(3600)
        if begins:
            drain.begin()
        drain.end()
        assert (drain.phase, await over(drain)) == (NodePhase.STOPPING, True)


async def test_without_time_there_is_no_draining() -> None:
    """`drain_s = 0`."""
    drain = drain_of(0)
    drain.begin()
    assert (drain.phase, await over(drain)) == (NodePhase.STOPPING, True)


def test_hold_and_release() -> None:
    """Each may be asked for again; the first time counts, and the log says how long it was."""
    drain = drain_of(3600)
    assert not drain.release(now_ns=0)
    with capture_logs() as lines:
        assert drain.hold(now_ns=1_000_000_000)
        assert not drain.hold(now_ns=2_000_000_000)
        assert (drain.phase, drain.held_since_ns) == (NodePhase.HELD, 1_000_000_000)
        assert drain.release(now_ns=61_500_000_000)
    assert (drain.phase, drain.held_since_ns) == (NodePhase.SERVING, None)
    assert [line.get("held_s") for line in lines] == [None, 60.5]


async def test_a_node_that_is_held_can_drain() -> None:
    """Then it is held no more, and neither hold nor release is taken."""
    drain = drain_of(3600)
    drain.hold(now_ns=1)
    drain.begin()
    assert (drain.phase, drain.held_since_ns) == (NodePhase.DRAINING, None)
    for phase in ("draining", "stopping"):
        with pytest.raises(RequestRefused, match=f"the node is {phase}: holding it would change nothing"):
            drain.hold(now_ns=2)
        with pytest.raises(RequestRefused, match=f"the node is {phase}: there is no way back"):
            drain.release(now_ns=2)
        drain.end()
    held = drain_of(3600)
    held.hold(now_ns=1)
    held.end()
    assert (held.phase, held.held_since_ns, await over(held)) == (NodePhase.STOPPING, None, True)
