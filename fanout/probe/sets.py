"""Checks of large retained sets: all of a set comes, and other packets come behind it.

SUBSCRIBE with a fence, PINGREQ and the link's own message leave in one write, as a link sends them
(`docs/decisions/0003-snapshot-evidence.md`). A packet that comes only behind a whole set proves a snapshot complete;
one that comes before it, within it or behind an incomplete set proves nothing.
"""

from __future__ import annotations

import time
from typing import Final

from aiomqtt import MqttError

from fanout.probe.ground import PATIENCE_S, Ground
from fanout.probe.results import Outcome, Result, failed, not_available, not_permitted, nothing_to_test, passed
from fanout.probe.retained_set import RetainedSet

__all__ = [
    "check_barrier",
    "check_fence",
    "check_large_set",
    "check_large_set_qos_1",
    "check_marker",
    "check_read_set",
    "check_server_fence",
    "check_suback",
]

SERVER_FENCE: Final = "$SYS/broker/version"
"""The fence that a link tries first."""
_ROUNDS: Final = 3
"""Number of reads of the set, because a packet that sometimes comes too early proves nothing."""
_QUIET_S: Final = 5.0
"""Silence that ends a set, the default of a link."""
_FIRST_S: Final = 15.0
"""Time for a primary to begin with a set."""
_READ_TOPICS_MAX: Final = 200_000
"""Largest number of topics that are read of `--filter`."""
_IDENTITY_TEXT_MAX: Final = 80
_FAILURE: Final = 0x80


async def check_read_set(ground: Ground) -> Result:
    """Read the retained set of the given filter twice, without publishing."""
    assert ground.read_filter is not None, "the runner leaves the check out without one"
    first = await _read(ground, ground.read_filter, qos=0, inside="", expected=None, marker=False)
    if first.codes and first.codes[0] >= _FAILURE:
        return not_permitted(f"SUBACK refuses {ground.read_filter} (0x{first.codes[0]:02X})")
    second = await _read(ground, ground.read_filter, qos=0, inside="", expected=None, marker=False)
    seen = f"{len(first.topics):,} topics, PINGRESP {second.describe('PINGRESP')}"
    if not first.topics:
        return nothing_to_test("it brings no retained message")
    if first.topics != second.topics:
        return failed(f"{len(first.topics):,} topics, then {len(second.topics):,} others or fewer")
    return passed(seen) if first.is_behind("PINGRESP") and second.is_behind("PINGRESP") else failed(seen)


async def check_server_fence(ground: Ground) -> Result:
    """Ask for the retained message that a link asks for first, at the beginning of an epoch."""
    async with ground.client() as client:
        try:
            code = (await client.subscribe(SERVER_FENCE))[0]
            came = await client.message(SERVER_FENCE, timeout_s=1.0)
        except MqttError:
            return failed(f"the primary closes the connection on a SUBSCRIBE to {SERVER_FENCE}")
    if came is not None:
        ground.fence = SERVER_FENCE
        return passed(bytes(came.payload).decode(errors="replace")[:_IDENTITY_TEXT_MAX])
    if code >= _FAILURE:
        return not_permitted(f"SUBACK refuses {SERVER_FENCE} (0x{code:02X})")
    return not_available(f"no {SERVER_FENCE}")


async def check_large_set(ground: Ground) -> Result:
    """Read many retained messages at QoS 0, as a link does."""
    async with ground.client() as client:
        if ground.fence is None:
            # Before the set: the fence of a link too is older than topics that are new since its first epoch.
            ground.fence = ground.topic("fence")
            await ground.retain(client, [(ground.fence, b"fence")])
        messages = [(ground.topic("large", str(index)), b"%032d" % index) for index in range(ground.set_size)]
        if not await ground.retain(client, messages):
            return not_permitted("PUBACK refuses a retained message")
    ground.rounds = [await _read_large(ground, qos=0) for _ in range(_ROUNDS)]
    return _judge(ground.rounds)


async def check_large_set_qos_1(ground: Ground) -> Result:
    """Read the same set at QoS 1."""
    return _judge([await _read_large(ground, qos=1)])


async def check_suback(ground: Ground) -> Result:
    """Check the place of SUBACK."""
    if not ground.rounds:
        return nothing_to_test("the large set could not be read")
    worst = max(ground.rounds, key=lambda one: one.places.get("SUBACK", 0))
    before = worst.places.get("SUBACK")
    if before is None:
        return failed("it does not come")
    return passed("before the set") if before == 0 else failed(worst.describe("SUBACK"), before)


async def check_fence(ground: Ground) -> Result:
    """Check the place of the retained message for the second Topic Filter of the same SUBSCRIBE."""
    return _place(ground, "fence", note=f" ({ground.fence})" if ground.fence == SERVER_FENCE else " (our own)")


async def check_barrier(ground: Ground) -> Result:
    """Check the place of PINGRESP."""
    return _place(ground, "PINGRESP")


async def check_marker(ground: Ground) -> Result:
    """Check the place of our own QoS 1 message."""
    return _place(ground, "marker")


def _place(ground: Ground, what: str, *, note: str = "") -> Result:
    if not ground.rounds:
        return nothing_to_test("the large set could not be read")
    wrong = [one for one in ground.rounds if not one.is_behind(what)]
    if not wrong:
        return passed(ground.rounds[0].describe(what) + note)
    often = f" (in {len(wrong)} of {len(ground.rounds)} rounds)" if len(wrong) < len(ground.rounds) else ""
    return failed(wrong[0].describe(what) + often + note, wrong[0].places.get(what))


def _judge(rounds: list[RetainedSet]) -> Result:
    worst = min(rounds, key=lambda one: len(one.topics))
    pause_s = max(one.pause_s for one in rounds)
    seen = f"{len(worst.topics):,} of {worst.expected:,} came"
    if pause_s >= 1:
        seen += f", with a pause of {pause_s:.1f} s"
    return Result(Outcome.PASSED if worst.is_whole else Outcome.FAILED, seen, figure=pause_s)


async def _read_large(ground: Ground, *, qos: int) -> RetainedSet:
    return await _read(
        ground, ground.topic("large", "#"), qos=qos, inside=ground.topic("large", ""), expected=ground.set_size
    )


async def _read(
    ground: Ground, topic_filter: str, *, qos: int, inside: str, expected: int | None, marker: bool = True
) -> RetainedSet:
    control = ground.topic("control") if marker else None
    fence = ground.fence if marker else None
    result = RetainedSet(inside, expected, fence, control)
    async with ground.client() as client:
        if control is not None:
            await client.subscribe(control, qos=1, retain_handling=2)
        taken = taken_before = len(client.arrivals)
        client.ask_for_set(
            [topic_filter] if fence is None else [topic_filter, fence],
            qos=qos,
            marker=None if control is None else (control, b"marker"),
        )
        awaited = {"SUBACK", "PINGRESP"} | ({"marker"} if control else set()) | ({"fence"} if fence else set())

        def is_over() -> bool:
            nonlocal taken
            for arrival in client.arrivals[taken:]:
                result.take(arrival)
            taken = len(client.arrivals)
            whole = expected is not None and result.is_whole and awaited <= result.places.keys()
            return whole or len(result.topics) >= _READ_TOPICS_MAX

        result.newest_at = asked_at = time.monotonic()
        while not await client.until(is_over, PATIENCE_S / 2):
            came = taken > taken_before
            quiet_s = time.monotonic() - (client.arrivals[-1].at if came else asked_at)
            if quiet_s >= (_FIRST_S if not came else _QUIET_S if expected is not None else PATIENCE_S):
                break
    return result
