"""A slow, obvious version of the completeness report in plain Python, written from the definitions alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from tests.reports.logs import NodeLog, Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Identity = tuple[str, int, int]
NEVER = 2**62


def micros(time: datetime) -> int:
    """Return microseconds of Unix time, exactly."""
    delta = time - EPOCH
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a Topic Name matches a Topic Filter, level by level (MQTT 5, section 4.7)."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or (level not in ("+", levels[index])):
            return False
    return len(levels) == len(wanted) or (len(wanted) == len(levels) + 1 and wanted[-1] == "#")


def selected(selector: Row, topic: str) -> bool:
    """Return whether a selector takes a topic."""
    if topic.startswith("fanout/control/"):
        return False  # the links' own messages
    return matches(selector["filter"], topic) and not any(matches(e, topic) for e in selector["exclude"])


@dataclass
class Expected:
    """The figures of one selector."""

    updates: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Of the missing."""
    over_time: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By whole seconds of Unix time: expected, missing and unknown."""
    finals: Counter[str] = field(default_factory=Counter)
    missing: set[Identity] = field(default_factory=set)
    certain: list[tuple[int, str, bool]] = field(default_factory=list)
    """When each update was published of which is known whether it came, its topic, and whether it is missing."""
    held: bool = True
    """Whether the link held everything before the window's end."""

    def loss(self, of: str | None = None, *, depth: int = 1000) -> tuple[int, int, bool | None] | None:
        """Return when the first and the last missing update was published, and whether the loss goes on.

        The last is None where nothing shows it.

        Args:
            of: A topic, or the first levels of topics; None for all.
            depth: How many levels.
        """
        judged = [
            (at_us, lost)
            for at_us, topic, lost in self.certain
            if of is None or topic.split("/")[:depth] == of.split("/")
        ]
        times = [at_us for at_us, lost in judged if lost]
        if not times:
            return None
        first_us, last_us = min(times), max(times)
        came = sum(first_us <= at_us <= last_us and not lost for at_us, lost in judged)
        after = sum(at_us > last_us for at_us, _ in judged)
        if (came / (came + len(times))) ** after <= 0.01:
            return first_us, last_us, False
        shown = len(times) >= 3 and after * len(times) <= came + len(times)
        return first_us, last_us, True if shown else None


class Span(NamedTuple):
    """When a link had to apply what was published."""

    from_us: int
    until_us: int
    settled_us: int
    """Until when it is judged."""
    silent_us: int
    """After this the node's log says nothing, and is not only late."""
    gaps: list[tuple[int, int]]


class Oracle:
    """The completeness of nodes relative to a node that stamps, or to a tap.

    Args:
        hub: The reference.
        nodes: The nodes.
        link: The link by which the reference got the updates; "" for what was published at it.
        settle_us: The settle horizon.
        behind_max_us: By how much a log may be late.
        since_us: The begin of the window that is asked for.
        until_us: Its end, which does not belong to it.
    """

    def __init__(
        self,
        hub: NodeLog,
        nodes: Iterable[NodeLog],
        *,
        link: str = "",
        settle_us: int,
        behind_max_us: int = 0,
        since_us: int = -NEVER,
        until_us: int = NEVER,
    ) -> None:
        self.since_us = since_us
        self.until_us = until_us
        self.hub = hub
        self.link = link
        self.nodes = list(nodes)
        self.settle_us = settle_us
        self.behind_max_us = max(behind_max_us, settle_us, 1_000_000)
        # A tap has another clock than the updates.
        self.end_us = end_of(hub) if hub.role != "tap" else max(micros(row["origin"]) for row in hub.updates)
        self.published: dict[Identity, Row] = {
            identity(row): row for row in hub.updates if row["phase"] == 0 and row["sequence"] is not None
        }

    def asked(self, row: Row) -> bool:
        """Return whether an update was stamped in the window."""
        return self.since_us <= micros(row["origin"]) < self.until_us

    def figures(self) -> dict[tuple[str, str, str], Expected]:
        """Return the figures by (node, link, filter)."""
        found: dict[tuple[str, str, str], Expected] = {}
        for node in self.nodes:
            starts = [row for row in node.events if row["event"] == "start"]
            for link in json.loads(starts[-1]["detail"])["links"]:
                for selector in link["selectors"]:
                    expected = Expected()
                    self._updates(node, link, selector, expected)
                    self._finals(node, link, selector, expected)
                    found[node.node, link["name"], selector["filter"]] = expected
        return found

    def _offset(self, rows: list[Row], session: int) -> int:
        for wanted in (session, None):
            delays = [
                micros(row["applied"]) - micros(row["origin"])
                for row in rows
                if row["phase"] == 0 and wanted in (None, row["link_epoch"])  # what was folded also took its way
            ]
            if delays:
                return min(delays)
        return 0

    def span(self, node: NodeLog, link: Row) -> Span:
        """Return after and until when a link had to apply what was published, and the gaps of its log."""
        of_link = [row for row in node.updates if row["link"] == link["name"] and row["sequence"] is not None]
        held = self._held(node, link)
        offset = self._offset(of_link, held[1]) if held else 0
        from_us = held[0] - offset if held else NEVER
        until_us = self.end_us
        last = max(row["node_epoch"] for row in (*node.events, *node.updates))
        stops = [micros(r["at"]) for r in node.events if r["event"] == "stop" and r["node_epoch"] == last]
        if stops:
            until_us = min(until_us, max(stops) - offset)
        gaps = []
        for row in node.events:
            if row["event"] == "gap" and row["link"] in ("", link["name"]):
                detail = json.loads(row["detail"])
                first = detail["node_epoch"] if detail["first_us"] is None else detail["first_us"]
                gaps.append((first - offset - self.settle_us, detail["last_us"] - offset))
        settled_us, silent_us = until_us - self.settle_us, NEVER
        ends_us = end_of(node) - offset
        if not stops and ends_us < until_us:  # the node says nothing of what came later
            if until_us - ends_us > self.behind_max_us:
                silent_us = ends_us - self.settle_us
                gaps.append((silent_us, NEVER))
            else:
                settled_us = ends_us - self.settle_us
        return Span(from_us, until_us, settled_us, silent_us, gaps)

    def _away(self, node: NodeLog, link: Row) -> list[tuple[int, int, str]]:
        """Return `absences` by the reference's clock."""
        of_link = [row for row in node.updates if row["link"] == link["name"] and row["sequence"] is not None]
        held = self._held(node, link)
        offset = self._offset(of_link, held[1]) if held else 0
        return [(after - offset, until - offset, cause) for after, until, cause in absences(node, link["name"])]

    def _updates(self, node: NodeLog, link: Row, selector: Row, expected: Expected) -> None:
        from_us, until_us, settled_us, _, gaps = self.span(node, link)
        if from_us >= self.until_us - 1:
            expected.held = False
            from_us = NEVER
        rows = [
            row
            for row in node.updates
            if (row["link"], row["selector"]) == (link["name"], selector["filter"]) and row["sequence"] is not None
        ]
        live = [row for row in rows if is_update(row)]
        applied = {identity(row) for row in live}
        copies = {identity(row) for row in rows if row["phase"] != 0}
        folded = {identity(row) for row in rows if row["flags"] & 8}
        newest: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, -1))
        for row in rows:
            if row["phase"] != 0:
                key = (row["stamp_primary"], row["topic"])
                newest[key] = max(newest[key], (row["stamp_epoch"], row["sequence"]))
        counts = expected.updates
        away = self._away(node, link)
        for update, row in self.published.items():
            at_us = micros(row["origin"])
            if not selected(selector, row["topic"]) or not from_us < at_us <= until_us or not self.asked(row):
                continue
            came = update in applied | copies | folded
            if at_us > settled_us:
                counts["pending"] += 1
                counts["pending_applied"] += came
                continue
            counts["expected"] += 1
            in_gap = any(after < at_us <= until for after, until in gaps)
            if came or not in_gap:
                expected.certain.append((at_us, row["topic"], not came))
            over_time = expected.over_time[at_us // 1_000_000]
            over_time["expected"] += 1
            if update in applied:
                counts["applied"] += 1
            elif update in copies:
                counts["reobtained"] += 1
            elif update in folded:
                counts["conflated"] += 1
            elif in_gap:
                counts["unknown"] += 1
                over_time["unknown"] += 1
            else:
                counts["missing"] += 1
                over_time["missing"] += 1
                expected.causes[cause_of(at_us, away)] += 1
                counts["superseded"] += newest[update[0], row["topic"]] > update[1:]
                expected.missing.add(update)
        live = [row for row in live if self.asked(row)]
        counts["duplicated"] = len(live) - len({identity(row) for row in live})
        counts["stale"] = sum(bool(row["flags"] & 4) for row in live)
        counts["refused"] = sum(row["change"] == 6 for row in live)
        counts["unreferenced"] = sum(
            update not in self.published or not selected(selector, self.published[update]["topic"])
            for update in {identity(row) for row in live if self.hub.role != "tap" or self._seen_by_tap(row)}
        )
        counts["unseen"] = max(0, self._absent() - counts["unreferenced"])

    def _seen_by_tap(self, row: Row) -> bool:
        """Return whether an update was stamped between the first and the last that a tap logged."""
        first_us = min(micros(one["origin"]) for one in self.published.values())
        return first_us <= micros(row["origin"]) <= self.end_us

    def _absent(self) -> int:
        """Return how many sequences of each epoch are not there, and may be of the window.

        They lie between two that are there, of which one was stamped after its begin and one before its end.
        """
        absent = 0
        gaps = [json.loads(row["detail"]) for row in self.hub.events if row["event"] == "gap"]
        if gaps and not any(gap["first_us"] < self.until_us and gap["last_us"] >= self.since_us for gap in gaps):
            return 0  # all that is absent was lost at another time
        for epoch in {epoch for _, epoch, _ in self.published}:
            times = {key[2]: micros(row["origin"]) for key, row in self.published.items() if key[1] == epoch}
            before = min(times)
            for sequence in sorted(times):
                if times[before] < self.until_us and times[sequence] >= self.since_us:
                    absent += max(0, sequence - before - 1)
                before = sequence
        return absent

    def _held(self, node: NodeLog, link: Row) -> tuple[int, int] | None:
        times = []
        for selector in link["selectors"]:
            found = [
                (micros(row["at"]), row["link_epoch"])
                for row in node.events
                if (row["event"], row["link"], row["selector"]) == ("complete", link["name"], selector["filter"])
            ]
            if not found:
                return None
            times.append(min(found))
        return max(times)

    def _finals(self, node: NodeLog, link: Row, selector: Row, expected: Expected) -> None:
        wanted = {t: v for t, v in replay(self.hub, self.link).items() if selected(selector, t)}
        held = replay(node, link["name"], selector["filter"])
        _, _, settled_us, silent_us, _ = self.span(node, link)
        for topic in wanted.keys() | held.keys():
            want, wanted_us = wanted.get(topic, (None, -NEVER))
            have, held_us = held.get(topic, (None, -NEVER))
            if want is None and have is None:
                continue
            if wanted_us > silent_us and (want, wanted_us) != (have, held_us):
                # The hub's value is newer than all that the node's log can tell of.
                verdict = "unknown"
            elif want == have:
                verdict = "equal"
            elif max(wanted_us, held_us) > settled_us:
                verdict = "pending"
            else:
                verdict = "absent" if have is None else "extra" if want is None else "different"
            expected.finals[verdict] += 1


def absences(node: NodeLog, link: str) -> list[tuple[int, int, str]]:
    """Return when and why a link may have lost updates: (after, until, cause) by its node's clock."""
    found: list[tuple[int, int, str]] = []
    after_us = left_us = was_live = checked_us = None
    state = ""
    rows = [row for row in node.events if row["link"] == link]
    for row in sorted(rows, key=lambda row: (row["node_epoch"], row["log_pos"])):
        at_us = micros(row["at"])
        if row["event"] == "audit":
            report = json.loads(row["detail"])
            if report["changed"] or report["removed"] or report["kept"] or report["loss"]:
                found.append((-NEVER if checked_us is None else checked_us, at_us, "audit"))
            checked_us = at_us
        elif row["event"] == "heartbeat" and state == "live":
            after_us = at_us - (row["lag_us"] or 0)
        elif row["event"] == "state" and row["state"] != "live":
            state = row["state"]
            if was_live is not None and left_us is None:
                left_us = at_us
        elif row["event"] == "state":
            state, checked_us = "live", at_us
            if was_live is not None and left_us is not None:
                live_us, process, epoch = was_live
                unheard_us = max(live_us, left_us - 60_000_000) if after_us is None else after_us
                cause = "new_epoch" if epoch != row["link_epoch"] else "resumed"
                found.append((unheard_us, at_us, "restart" if process != row["node_epoch"] else cause))
            was_live, left_us, after_us = (at_us, row["node_epoch"], row["link_epoch"]), None, None
    if was_live is not None and left_us is not None:
        found.append((max(was_live[0], left_us - 60_000_000) if after_us is None else after_us, NEVER, "away"))
    return found


def cause_of(at_us: int, spans: list[tuple[int, int, str]]) -> str:
    """Return the cause of the span that covers a time and lasts longest; an audit's only when no other does."""
    covering = [(until, cause) for after, until, cause in spans if after < at_us <= until]
    away = [one for one in covering if one[1] != "audit"]
    return max(away or covering, default=(0, "live"))[1]


def end_of(log: NodeLog) -> int:
    """Return the last time in a log."""
    times = [micros(row["applied"]) for row in log.updates] + [micros(row["at"]) for row in log.events]
    return max(times)


def replay(log: NodeLog, link: str, topic_filter: str | None = None) -> dict[str, tuple[int | None, int]]:
    """Return the value of each topic in one log at its end, and when it changed, reading row by row."""
    last = max(row["node_epoch"] for row in (*log.events, *log.updates))
    rows = [row for row in log.updates if row["link"] == link and topic_filter in (None, row["selector"])]
    torn = [row for row in log.events if row["event"] == "tear_down" and row["link"] == link]
    state: dict[str, tuple[int | None, int]] = {}
    for row in sorted((r for r in rows + torn if r["node_epoch"] == last), key=lambda r: int(r["log_pos"])):
        if "event" in row:
            state.clear()
        elif row["change"] in (1, 2, 3, 5, 6):
            changed_us = micros(row["origin"] or row["applied"])
            state[row["topic"]] = (None if row["change"] in (3, 6) else row["digest"], changed_us)
    return state


def identity(row: Row) -> Identity:
    """Return the identity of a stamped row."""
    return row["stamp_primary"], row["stamp_epoch"], row["sequence"]


def is_update(row: Row) -> bool:
    """Return whether a row is an update that was applied."""
    return bool(row["phase"] == 0 and not row["flags"] & 8)
