"""Small random logs without stamps, of several primaries that do not stamp, and what really happened at each link.

Clocks differ, and updates travel, by less than a settle horizon of 2.5 s. Beside the columns
of the log a row has the number of its update and how long that waited, by which a test can tell what was lost.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fanout.replica.update import ChangeKind, Phase
from tests.reports.logs import SECOND, T0, NodeLog, Row, at, selector
from tests.reports.oracle import micros, selected

TOPICS = (
    *("plant/a/state", "plant/a/count", "plant/b/state", "plant/b/count", "plant/debug/x", "plant"),
    *("site/1/state", "site/1/é.x*[y", "$SYS/uptime", "/lead", "fanout/control/edge/up"),
)

CONFIGURATIONS = (
    (selector("plant/#", "plant/debug/#"), selector("site/+/#")),
    (selector("#"),),
    (selector("+/+/state"), selector("plant/+/count")),
    (selector("#", "plant/b/#"),),
    (selector("$SYS/#"), selector("+")),
)

WIDE = (selector("#"), selector("$SYS/#"))
NARROW = (selector("plant/#"), selector("site/1/+"))


@dataclass
class Published:
    """An update at a primary that does not stamp."""

    number: int
    at_us: int
    topic: str
    payload: str
    retain: bool


@dataclass
class Observed:
    """A link, and which updates really came to it, logged or not."""

    log: NodeLog
    link: Row
    came: set[int] = field(default_factory=set)
    first: int = 0
    """The first update that was published after it held everything: it had to get none before that."""


def random_updates(rng: random.Random, *, updates: int) -> list[Published]:
    """Return what was published at one primary in about a minute: few values that repeat, and some that do not."""
    found = []
    for number in range(updates):
        topic = rng.choice(TOPICS) if rng.random() < 0.8 else f"plant/rare/{rng.randrange(30)}"
        payload = f"{number}" if topic.endswith("count") else rng.choice(("", "0", "1", "1"))
        now = at(1 + 58 * number / updates) + rng.randrange(1000)
        found.append(Published(number, now, topic, payload, rng.random() < 0.9))
    return found


class _Life:
    """What a link brings, as its node logs it.

    Args:
        rng: Where chance comes from.
        log: The log of its node, in which `link` is configured.
        link: The link.
        way_us: The time that an update travels, and by which the node's clock is ahead.
    """

    def __init__(self, rng: random.Random, log: NodeLog, link: Row, *, way_us: int) -> None:
        self.seen = Observed(log, link)
        self.retained: dict[str, Published] = {}
        self.waiting: list[Published] = []
        self._rng = rng
        self._log = log
        self._name = link["name"]
        self._way_us = way_us

    def tell(self, event: str, at_us: int, **columns: Any) -> None:
        """Log an event of the link."""
        self._log.event(event, at_us + self._way_us, link=self._name, **columns)

    def apply(self, one: Published, at_us: int, *, phase: Phase = Phase.LIVE) -> None:
        """Log an update, sometimes folded into a newer one or twice, or a copy of a value."""
        selectors = self.seen.link["selectors"]
        own = next((its["filter"] for its in selectors if selected(its, one.topic)), None)
        if own is None:
            return
        change = ChangeKind.REPLACED if one.payload else ChangeKind.REMOVED
        change = change if one.retain else ChangeKind.MESSAGE
        flags = 8 if phase is Phase.LIVE and self._rng.random() < 0.02 else 0
        row: Row = {"phase": int(phase), "flags": flags, "change": int(ChangeKind.MESSAGE if flags else change)}
        if phase is Phase.LIVE:
            self.seen.came.add(one.number)
        elif self._rng.random() < 0.2:
            row["change"] = int(ChangeKind.UNCHANGED)
        row |= {"link": self._name, "selector": own, "retain": one.retain, "published": one.number}
        row |= {"waited_us": at_us - one.at_us}
        self._log.update(at_us + self._way_us, one.topic, one.payload, **row)
        if phase is Phase.LIVE and self._rng.random() < 0.03:
            self._log.update(at_us + self._way_us, one.topic, one.payload, **(row | {"flags": 3}))

    def copy(self, at_us: int, *, phase: Phase = Phase.SNAPSHOT) -> None:
        """Log copies of most of the retained values."""
        for one in self.retained.values():
            if self._rng.random() < 0.9:
                self.apply(one, at_us, phase=phase)

    def become_live(self, at_us: int) -> None:
        """Log a snapshot, and that it was complete."""
        self.copy(at_us)
        filters = [one["filter"] for one in self.seen.link["selectors"]]
        self._log.ready(at_us + self._way_us, self._name, *filters, took_us=1000)

    def come_back(self, at_us: int, *, how: str, loss: float) -> None:
        """Log how the link became live again, and with a session that went on what had waited for it."""
        if how == "resumed":
            self.tell("state", at_us, state="connecting")
            self.tell("state", at_us, state="live", topics=7)
            for late in self.waiting:
                if self._rng.random() >= loss:
                    self.apply(late, at_us + 1000)
            return
        if how == "restart":
            self._log.restart(at_us + self._way_us)
            self._log.start(at_us + self._way_us, self.seen.link)
        if how == "new_epoch":
            self.tell("tear_down", at_us)
        self._log.link_epoch += 1
        self.become_live(at_us)

    def beat(self, at_us: int) -> None:
        """Log a heartbeat that came back at once; its digest says nothing of the values."""
        digest, lag_us = self._rng.choice((1, 1, -2)), self._rng.randrange(1000)
        self.tell("heartbeat", at_us, lag_us=lag_us, topics=self._rng.choice((3, 3, 4)), digest=digest)

    def audit(self, at_us: int) -> None:
        """Log an audit, which may say that something had been lost."""
        changed, loss = self._rng.choice((0, 1)), self._rng.random() < 0.1
        self.copy(at_us, phase=Phase.AUDIT)
        detail = {"changed": changed, "removed": 0, "kept": 0, "checked": 9, "loss": loss}
        self.tell("audit", at_us, detail=json.dumps(detail))


def random_link(
    rng: random.Random, log: NodeLog, link: Row, published: Sequence[Published], *, watching: bool = False
) -> Observed:
    """Log what a link brought of all that was published at its primary, and return what really came.

    Args:
        rng: Where chance comes from.
        log: The log of its node, in which `link` is configured.
        link: The link.
        published: The updates.
        watching: Whether it is there from the beginning and keeps its session, as a tap should.
    """
    life = _Life(rng, log, link, way_us=rng.randrange(1_000, 300_000) + rng.choice((0, 0, 700_000, -700_000)))
    ready_us = at(0.5) if watching else at(rng.choice((0.9, 5, 20)))
    away = (at(rng.uniform(20, 35)), at(rng.uniform(36, 50))) if rng.random() < 0.7 else (0, 0)
    how = rng.choice(("resumed", "resumed", "new_epoch", "restart"))
    if watching:
        how = "resumed"
    elif rng.random() < 0.15:
        away = (away[0], at(99))
    loss = rng.choice((0, 0.05, 0.3))
    beats = rng.random() < 0.7
    beat_us = audit_us = 0
    state = "begin"
    for one in published:
        now = one.at_us
        if state == "begin" and now > ready_us:
            life.become_live(ready_us)
            life.seen.first = one.number
            state = "live"
        if state == "live" and away[0] and away[0] < now <= away[1]:
            life.tell("state", away[0] + SECOND, state="down")
            state = "away"
        if state == "away" and now > away[1]:
            life.come_back(away[1], how=how, loss=loss)
            state, away = "live", (0, 0)
        if state == "live" and beats and now > beat_us + 2 * SECOND:
            beat_us = now
            life.beat(now)
        if state == "live" and now > audit_us + 15 * SECOND and rng.random() < 0.02:
            audit_us = now
            life.audit(now)
        if state == "live" and rng.random() >= loss:
            life.apply(one, now)
        elif state == "away":
            life.waiting.append(one)
        if one.retain:
            life.retained[one.topic] = one
            if not one.payload:
                del life.retained[one.topic]
    return life.seen


def lose_rows(rng: random.Random, seen: Observed) -> None:
    """Take rows of some seconds, in which the link was live, out of a log, which says so."""
    log, link = seen.log, seen.link["name"]
    rows = [row for row in log.updates if row["link"] == link and row["node_epoch"] == log.node_epoch]
    quiet = [micros(row["at"]) for row in log.events if row["link"] == link and row["event"] == "state"]
    begin = rng.randrange(max(1, len(rows) - 20))
    lost = rows[begin : begin + rng.randrange(5, 20)]
    if not lost:
        return
    first_us, last_us = (bound(micros(row["applied"]) for row in lost) for bound in (min, max))
    if any(first_us - 3 * SECOND < at_us < last_us + 3 * SECOND for at_us in quiet):
        return  # what had waited need not be near in time
    positions = [row["log_pos"] for row in lost]
    log.updates = [row for row in log.updates if not any(row is one for one in lost)]
    log.gap(
        last_us,
        link=link,
        rows=len(lost),
        first_log_pos=positions[0],
        last_log_pos=positions[-1],
        first_us=first_us,
        last_us=last_us,
    )


def end_log(rng: random.Random, log: NodeLog) -> None:
    """End a log: by a stop, where the others end, or a little before them."""
    last_us = max(micros(row.get("applied") or row["at"]) for row in (*log.updates, *log.events))
    kind = rng.choice(("stop", "end", "late"))
    if kind == "stop":
        log.event("stop", max(last_us, at(rng.uniform(52, 61))))
    elif kind == "end":
        log.event("heartbeat", max(last_us, at(60)))


def fall_silent(log: NodeLog, at_us: int) -> None:
    """Take away what a log has after a time, as when its node died and took it with it."""
    rows = (*log.updates, *log.events)
    end = min((row["log_pos"] for row in rows if micros(row.get("applied") or row["at"]) > at_us), default=2**62)
    log.updates = [row for row in log.updates if row["log_pos"] < end]
    log.events = [row for row in log.events if row["log_pos"] < end]


def random_cluster(
    rng: random.Random, *, kind: str, nodes: int
) -> tuple[list[Observed], list[Observed], list[NodeLog]]:
    """Return the links of the reference, those of the nodes, and all logs.

    Args:
        rng: Where chance comes from.
        kind: `tap`, with a link to each of two primaries; `union`, of the nodes; or `primary`, by value.
        nodes: How many nodes.
    """
    primaries = {name: random_updates(rng, updates=220) for name in (("a",) if kind == "primary" else ("a", "b"))}
    reference: list[Observed] = []
    logs: list[NodeLog] = []
    if kind == "tap":
        tap = NodeLog("tap", "tap")
        links: list[Row] = [
            {"name": name, "primary": [f"mqtt://{name}"], "selectors": list(rng.choice((WIDE, NARROW)))}
            for name in primaries
        ]
        tap.start(at(0), *links)
        reference = [random_link(rng, tap, link, primaries[link["name"]], watching=True) for link in links]
        if rng.random() < 0.3:
            lose_rows(rng, rng.choice(reference))
        tap.event("heartbeat", at(61))
        logs.append(tap)
    elif kind == "primary":
        hub = NodeLog("hub", "primary")
        hub.start(at(0))
        for one in primaries["a"]:
            change = ChangeKind.REPLACED if one.payload else ChangeKind.REMOVED
            change = change if one.retain else ChangeKind.MESSAGE
            columns = {"retain": one.retain, "change": int(change), "published": one.number, "waited_us": 0}
            hub.update(one.at_us, one.topic, one.payload, **columns)
        hub.event("heartbeat", at(61))
        reference = [Observed(hub, {}, {one.number for one in primaries["a"]})]
        logs.append(hub)
    found: dict[str, list[Observed]] = defaultdict(list)
    for number in range(nodes):
        log = NodeLog(f"edge-{number:02}")
        name = rng.choice(list(primaries))
        link = {"name": name, "primary": [f"mqtt://{name}"], "selectors": list(rng.choice(CONFIGURATIONS))}
        log.start(at(0.1), link)
        seen = Observed(log, link)
        if number % 9 != 8:  # that one never connects
            seen = random_link(rng, log, link, primaries[name])
            if rng.random() < 0.25 and log.node_epoch == T0:
                fall_silent(log, at(rng.uniform(30, 50)))
            else:
                if rng.random() < 0.5:
                    lose_rows(rng, seen)
                end_log(rng, log)
        found[name].append(seen)
        logs.append(log)
    observed = [seen for name in sorted(found) for seen in found[name]]
    return reference or observed, observed, logs
