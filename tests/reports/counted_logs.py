"""Logs of a tap and of nodes beside a broker that does not stamp, with planted faults, and what really came to each.

The traffic is ordinary: values with a counter in them, on/off values, and constants that are repeated each second. The
order of each topic is kept, and nothing comes twice within a connection. A session that is resumed sends again, with
DUP set, what the node may not have acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.reports.logs import SECOND, NodeLog, Row, at, selector

FILTER = "plant/#"
LINK = "up"
END_S = 180.0


@dataclass(frozen=True)
class Message:
    """What was published, and when."""

    number: int
    at_s: float
    topic: str
    payload: str


@dataclass
class Faults:
    """What goes wrong at one link."""

    ahead_s: float = 0.0
    """By how much its clock is ahead."""
    loss: float = 0.0
    """The share of updates that the broker drops."""
    burst: tuple[float, float] = (0.0, 0.0)
    """When the broker drops all."""
    slow: tuple[float, float] = (0.0, 0.0)
    """When nothing arrives; all of it comes at the end."""
    away: tuple[float, float] = (0.0, 0.0)
    """When the link is away."""
    how: str = "resumed"
    """How it comes back: `resumed` or `new_epoch`."""
    queued: int = 10**9
    """How many updates the broker keeps for it meanwhile."""
    tail_s: float = 0.005
    """The mean of the time that an update takes."""
    hiccups: float = 0.0
    """The share of updates before which it does nothing for some tenths of a second."""
    held_s: float = 1.0
    """From when on it holds everything."""


@dataclass
class Counted:
    """The log of one node, and which updates really came to it."""

    log: NodeLog
    came: set[int] = field(default_factory=set)
    row_of: dict[int, int] = field(default_factory=dict)
    """By position in the log the number of the update."""


def messages(rng: random.Random, *, counters: int, toggles: int, constants: int) -> list[Message]:
    """Return three minutes of traffic in order of time."""
    found: list[tuple[float, str, str]] = []
    for topic in range(counters):
        now, number = rng.random(), 0
        while now < END_S:
            found.append((now, f"plant/count/{topic}", str(number)))
            now, number = now + rng.expovariate(1), number + 1
    for topic in range(toggles):
        now, number = rng.random() * 5, 0
        while now < END_S:
            found.append((now, f"plant/state/{topic}", ("off", "on")[number % 2]))
            now, number = now + rng.expovariate(0.3), number + 1
    for topic in range(constants):
        now = rng.random()
        while now < END_S:
            found.append((now, f"plant/alive/{topic}", "1"))
            now += 1 + rng.gauss(0, 0.002)
    return [Message(number, *one) for number, one in enumerate(sorted(found))]


def random_faults(rng: random.Random) -> Faults:
    """Return some faults, or none."""
    begin = rng.uniform(40, 100)
    slow, burst = rng.uniform(20, 160), rng.uniform(20, 160)
    return Faults(
        ahead_s=rng.choice((0.0, 3.0, -2.0)),
        loss=rng.choice((0, 0, 0.002, 0.01, 0.05)),
        burst=(burst, burst + 3) if rng.random() < 0.3 else (0.0, 0.0),
        slow=(slow, slow + rng.uniform(0.2, 5)) if rng.random() < 0.3 else (0.0, 0.0),
        away=(begin, begin + rng.uniform(1, 20)) if rng.random() < 0.6 else (0.0, 0.0),
        how=rng.choice(("resumed", "new_epoch")),
        queued=rng.choice((10**9, 50)),
        tail_s=rng.choice((0.002, 0.01, 0.05)),
        held_s=rng.uniform(1, 20),
    )


def observe(rng: random.Random, log: NodeLog, published: Sequence[Message], faults: Faults) -> Counted:
    """Log what a link brought of all that was published."""
    seen = Counted(log)
    link: Row = {"name": LINK, "primary": ["mqtt://broker"], "selectors": [selector(FILTER)]}

    def clock(at_s: float) -> int:
        return at(at_s + faults.ahead_s)

    def apply(one: Message, at_s: float, **columns: int) -> None:
        row = log.update(
            clock(at_s), one.topic, one.payload, link=LINK, selector=FILTER, retain=False, change=4, **columns
        )
        seen.row_of[row["log_pos"]] = one.number
        seen.came.add(one.number)

    log.start(clock(0.1), link)
    log.ready(clock(faults.held_s), LINK, FILTER, took_us=50_000)
    latest_s, beat_s = faults.held_s, faults.held_s
    waiting: list[Message] = []
    recent: list[tuple[float, Message]] = []
    state = "live"
    for one in published:
        if one.at_s <= faults.held_s:
            continue
        if state == "live" and faults.away[0] and one.at_s > faults.away[0]:
            log.event("state", clock(max(latest_s, faults.away[0])), link=LINK, state="down")
            state = "away"
        if state == "away" and one.at_s > faults.away[1]:
            latest_s = max(latest_s, faults.away[1]) + 0.01
            log.event("state", clock(latest_s), link=LINK, state="connecting")
            if faults.how == "new_epoch":
                log.link_epoch += 1
                log.ready(clock(latest_s), LINK, FILTER, took_us=5_000)
            else:
                log.event("state", clock(latest_s), link=LINK, state="live")
                for _, again in [each for each in recent if each[0] > faults.away[0] - 0.3][-5:]:
                    latest_s += 0.0001
                    apply(again, latest_s, flags=1)
                for number, late in enumerate(waiting[: faults.queued]):
                    latest_s += 0.0001
                    apply(late, latest_s, flags=1 if number < 3 else 0)
            waiting.clear()
            state = "back"
        if state == "away":
            waiting.append(one)
            continue
        if one.at_s > beat_s + 2 and not faults.slow[0] < one.at_s < faults.slow[1]:
            beat_s = one.at_s
            latest_s = max(latest_s, beat_s + 0.004)
            log.event("heartbeat", clock(latest_s), link=LINK, lag_us=4_000)
        if rng.random() < faults.loss or faults.burst[0] < one.at_s < faults.burst[1]:
            continue
        due_s = faults.slow[1] if faults.slow[0] < one.at_s < faults.slow[1] else one.at_s
        if faults.hiccups and rng.random() < faults.hiccups:
            due_s += rng.uniform(0.05, 0.5)
        latest_s = max(latest_s, due_s + rng.expovariate(1 / faults.tail_s))
        apply(one, latest_s)
        recent = [*recent[-20:], (latest_s, one)]
    log.event("stop", max(clock(END_S + 20), clock(latest_s) + SECOND))
    return seen
