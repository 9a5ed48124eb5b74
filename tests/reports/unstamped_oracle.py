"""Slow, obvious versions of final values and convergence without stamps, in plain Python, from the definitions alone.

The definitions are those of docs/reference/reports.md. Updates are counted by `counted_oracle`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.reports.logs import NodeLog, Row
from tests.reports.oracle import NEVER, Span, end_of, micros, replay, selected

Place = tuple[str, str, str]
Link = tuple[NodeLog, Row]
Value = tuple[str, int]
"""A topic and a digest: all that there is of an update without a stamp."""
State = tuple[dict[str, tuple[int | None, int]], set[str], bool]
"""Of each topic its last digest (None when there is no value) and when it changed; the topics of which a later row may
be lost; and whether none may be lost of the others."""

CAUSES = ("restart", "new_epoch", "resumed", "away", "audit")
DUP = 1


@dataclass
class Bounds:
    """What is said of one selector."""

    held: bool = False
    finals: dict[str, str] = field(default_factory=dict)
    """The verdict on each topic."""


@dataclass
class Members:
    """What is said of one selector over all of its nodes."""

    verdicts: Counter[str] = field(default_factory=Counter)
    apart: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Of each topic that is apart, the digests by node."""
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Topics and digest by node."""
    compared: int = 0
    equal: int = 0
    last_equal_us: int | None = None


class UnstampedOracle:
    """The completeness and convergence of links relative to what others logged, where nothing has a stamp.

    Args:
        sources: The logs of the reference, those of one primary at a time: each with its link, or with None for what
            was published at the node itself.
        nodes: The links that are compared with it.
        union: Whether the reference is all of them together.
        settle_us: The settle horizon.
        behind_max_us: By how much a log may be late.
        since_us: The begin of the window that is asked for.
        until_us: Its end, which does not belong to it.
    """

    def __init__(
        self,
        sources: Iterable[tuple[NodeLog, Row | None]],
        nodes: Iterable[Link],
        *,
        union: bool,
        settle_us: int,
        behind_max_us: int,
        since_us: int = -NEVER,
        until_us: int = NEVER,
    ) -> None:
        self.sources = list(sources)
        self.nodes = list(nodes)
        self.union = union
        self.settle_us = settle_us
        self.behind_max_us = max(behind_max_us, settle_us, 1_000_000)
        self.since_us = since_us
        self.until_us = until_us
        self.end_us = max(end_of(log) for log, _ in self.sources)
        held = [held_from(log, link) for log, link in self.sources if link is not None]
        self.from_us = min((time for time in held if time is not None), default=NEVER) if held else -NEVER

    def bounds(self) -> dict[Place, Bounds]:
        """Return what is said of each selector by (node, link, filter)."""
        found: dict[Place, Bounds] = {}
        for log, link in self.nodes:
            for selector in link["selectors"]:
                one = found[log.node, link["name"], selector["filter"]] = Bounds()
                one.held = self.span(log, link).from_us < NEVER
                self._finals(log, link, selector, one)
        return found

    def span(self, log: NodeLog, link: Row) -> Span:
        """Return in which span a link had to get what the reference logged, and the gaps of its log."""
        held_us = held_from(log, link)
        from_us = NEVER if held_us is None else max(held_us, self.from_us)
        until_us = self.end_us
        stops = [micros(row["at"]) for row in log.events if row["event"] == "stop"]
        stops = [at_us for at_us in stops if at_us > log.node_epoch]
        if stops:
            until_us = min(until_us, max(stops))
        gaps = [
            (gap["first_us"] - self.settle_us, gap["last_us"] + self.settle_us)
            for row, gap in gaps_of(log)
            if row["link"] in ("", link["name"])
        ]
        settled_us, silent_us, ends_us = until_us - self.settle_us, NEVER, end_of(log)
        if not stops and ends_us < until_us and self.until_us - 1 > ends_us - self.settle_us:
            if until_us - ends_us > self.behind_max_us:
                silent_us = ends_us - self.settle_us
                gaps.append((silent_us, NEVER))
            else:
                settled_us = ends_us - self.settle_us
        if held_us is not None and held_us >= self.until_us - 1:
            from_us = NEVER  # it held everything only after the window
        last_us = self.until_us - 1
        return Span(max(from_us, self.since_us - 1), min(until_us, last_us), min(settled_us, last_us), silent_us, gaps)

    def _shows(self, topic: str) -> bool:
        """Return whether the reference has a topic at all, as far as its links select it."""
        if self.union:
            return True
        return any(its is None or any(selected(s, topic) for s in its["selectors"]) for _, its in self.sources)

    def _wanted(self, selector: Row) -> State:
        """Return the reference's final values of a selector."""
        values: dict[str, tuple[int | None, int]] = {}
        unsure: set[str] = set()
        whole = True
        for log, link in self.sources:
            name = "" if link is None else link["name"]
            state, doubtful, without_gap = standing(log, name)
            whole &= without_gap
            for topic, value in state.items():
                if topic not in values or value[1] > values[topic][1]:  # of several logs the newest says it
                    values[topic] = value
                    unsure = unsure - {topic} | {topic} & doubtful
        values = {topic: value for topic, value in values.items() if selected(selector, topic)}
        return values, unsure, whole

    def _held(self, log: NodeLog, link: Row, selector: Row) -> State:
        state, unsure, whole = standing(log, link["name"], selector["filter"])
        return {topic: value for topic, value in state.items() if self._shows(topic)}, unsure, whole

    def _finals(self, log: NodeLog, link: Row, selector: Row, one: Bounds) -> None:
        wanted, wanted_unsure, wanted_whole = self._wanted(selector)
        held, held_unsure, held_whole = self._held(log, link, selector)
        span = self.span(log, link)
        for topic in wanted.keys() | held.keys():
            want, wanted_us = wanted.get(topic, (None, -NEVER))
            have, held_us = held.get(topic, (None, -NEVER))
            if want is None and have is None:
                continue
            sure = topic not in wanted_unsure if topic in wanted else wanted_whole
            sure &= topic not in held_unsure if topic in held else held_whole
            if not sure or wanted_us > span.silent_us:
                one.finals[topic] = "unknown"
            elif want == have:
                one.finals[topic] = "equal"
            elif max(wanted_us, held_us) > span.settled_us:
                one.finals[topic] = "pending"
            else:
                one.finals[topic] = "absent" if have is None else "extra" if want is None else "different"

    def members(self, *, window_us: int) -> dict[tuple[str, tuple[str, ...]], Members]:
        """Return what is said of each selector by (filter, excludes), with the digests of windows of time."""
        found: dict[tuple[str, tuple[str, ...]], Members] = {}
        links: dict[tuple[str, tuple[str, ...]], list[tuple[NodeLog, Row, Row]]] = defaultdict(list)
        for log, link in self.nodes:
            for selector in link["selectors"]:
                links[selector["filter"], tuple(sorted(selector["exclude"]))].append((log, link, selector))
        for key, nodes in links.items():
            one = found[key] = Members()
            states = {log.node: self._held(log, link, selector) for log, link, selector in nodes}
            if not self.union:
                states[self.sources[0][0].node] = self._wanted(nodes[0][2])
            spans = [self.span(log, link) for log, link, _ in nodes]
            settled_us = min(min(span.settled_us, span.silent_us) for span in spans)
            for topic in {topic for state, _, _ in states.values() for topic in state}:
                values = {name: state.get(topic, (None, -NEVER)) for name, (state, _, _) in states.items()}
                digests = {name: digest for name, (digest, _) in values.items()}
                if not any(digest is not None for digest in digests.values()):
                    continue
                sure = all(topic not in unsure if topic in state else whole for state, unsure, whole in states.values())
                if not sure:
                    verdict = "unknown"
                elif len(set(digests.values())) == 1:
                    verdict = "equal"
                else:
                    verdict = "pending" if max(at_us for _, at_us in values.values()) > settled_us else "apart"
                one.verdicts[verdict] += 1
                if verdict == "apart":
                    one.apart[topic] = digests
            for name, (state, _, _) in states.items():
                held = [digest for digest, _ in state.values() if digest is not None]
                one.held[name] = (len(held), sum(held) % 2**64)
            self._digests(nodes, one, window_us=window_us)
        return found

    def _digests(self, nodes: list[tuple[NodeLog, Row, Row]], one: Members, *, window_us: int) -> None:
        said: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
        for log, link, selector in nodes:
            of_selector = {selector["filter"]} | ({""} if len(link["selectors"]) == 1 else set())
            rows = [row for row in log.events if row["link"] == link["name"] and row["selector"] in of_selector]
            rows = [row for row in rows if row["event"] in ("complete", "heartbeat", "state")]
            for row in sorted(rows, key=lambda row: (row["node_epoch"], row["log_pos"])):
                at_us = micros(row["at"])
                if self.since_us <= at_us < self.until_us:
                    said[at_us - at_us % window_us][log.node] = (row["topics"], row["digest"])
        both = {at_us: set(values.values()) for at_us, values in said.items() if len(values) > 1}
        one.compared = len(both)
        one.equal = sum(len(values) == 1 for values in both.values())
        one.last_equal_us = max((at_us for at_us, values in both.items() if len(values) == 1), default=None)


def value_of(row: Row) -> Value:
    """Return all that tells an update without a stamp from another."""
    return row["topic"], row["digest"]


def held_from(log: NodeLog, link: Row) -> int | None:
    """Return when a link first held everything: when the last of its selectors was complete; None if it never did."""
    times = [
        [
            micros(row["at"])
            for row in log.events
            if (row["event"], row["link"], row["selector"]) == ("complete", link["name"], selector["filter"])
        ]
        for selector in link["selectors"]
    ]
    return max(min(found) for found in times) if all(times) else None


def gaps_of(log: NodeLog) -> list[tuple[Row, Row]]:
    """Return the gap events of a log, each with its detail."""
    return [(row, json.loads(row["detail"])) for row in log.events if row["event"] == "gap"]


def standing(log: NodeLog, link: str, topic_filter: str | None = None) -> State:
    """Return the final values in one log, the topics of which a later row may be lost, and whether no row is.

    A gap of an earlier process says nothing of what is held now.
    """
    ends = [
        gap["last_log_pos"]
        for row, gap in gaps_of(log)
        if row["link"] in ("", link) and gap["node_epoch"] == log.node_epoch
    ]
    gap_pos = max(ends, default=0)
    state = replay(log, link, topic_filter)
    sure = {
        row["topic"]
        for row in log.updates
        if row["link"] == link
        and topic_filter in (None, row["selector"])
        and row["node_epoch"] == log.node_epoch
        and row["log_pos"] > gap_pos
        and row["change"] != 4
    }
    return state, state.keys() - sure, not ends
