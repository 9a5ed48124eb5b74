"""Slow, obvious versions of the reports on snapshots, convergence, stalls and traffic, from the definitions alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.reports.logs import NodeLog, Row
from tests.reports.oracle import NEVER, Oracle, is_update, micros, replay, selected

Place = tuple[str, str, str]


@dataclass
class Epoch:
    """What is said of one epoch of a link."""

    begin_us: int | None = None
    live_us: int | None = None
    entered_live: int = 0
    selectors: set[str] = field(default_factory=set)
    evidence: set[str] = field(default_factory=set)
    tear_downs: int = 0
    last_us: int = 0
    verdict: str = ""


def epochs_of(
    nodes: Iterable[NodeLog], *, settle_us: int, since_us: int = -NEVER, until_us: int = NEVER
) -> dict[tuple[str, str, int, int], Epoch]:
    """Return the epochs of a window by (node, link, node epoch, link epoch), reading the events one by one."""
    found: dict[tuple[str, str, int, int], Epoch] = defaultdict(Epoch)
    for node in nodes:
        since: dict[tuple[int, str], int] = {}
        times = [micros(r["at"]) for r in node.events] + [micros(r["applied"]) for r in node.updates]
        for row in sorted(node.events, key=lambda row: (row["node_epoch"], row["log_pos"])):
            if not row["link"] or row["event"] not in ("state", "complete", "tear_down", "heartbeat"):
                continue
            at_us, place = micros(row["at"]), (row["node_epoch"], row["link"])
            key = (node.node, row["link"], row["node_epoch"], row["link_epoch"])
            if row["event"] == "heartbeat":
                if key in found:  # it says that the epoch goes on, and begins none
                    found[key].last_us = max(found[key].last_us, at_us)
                continue
            epoch = found[key]
            epoch.last_us = max(epoch.last_us, at_us)
            if row["event"] == "tear_down":
                epoch.tear_downs += 1
                since[place] = at_us
            elif row["state"] == "connecting":
                since[place] = at_us
            elif row["state"] != "down":
                begin_us = since.get(place, at_us)
                epoch.begin_us = begin_us if epoch.begin_us is None else min(epoch.begin_us, begin_us)
            if row["event"] == "complete":
                epoch.selectors.add(row["selector"])
                epoch.evidence.add(row["evidence"])
            if row["state"] == "live":
                epoch.entered_live += 1
                epoch.live_us = at_us if epoch.live_us is None else min(epoch.live_us, at_us)
        stopped = any(r["event"] == "stop" and r["node_epoch"] == node.node_epoch for r in node.events)
        for key, epoch in found.items():
            if key[0] == node.node and epoch.begin_us is not None:
                young = epoch.begin_us > max(times) - settle_us
                newest = key[3] == max(other[3] for other in found if other[:3] == key[:3])
                if not stopped and key[2] == node.node_epoch and newest and not epoch.tear_downs:
                    young = True  # it goes on
                epoch.verdict = "ready" if epoch.live_us is not None else "pending" if young else "never"
    return {
        key: epoch
        for key, epoch in found.items()
        if epoch.begin_us is not None and epoch.begin_us < until_us and epoch.last_us >= since_us
    }


def links_of(node: NodeLog) -> list[Row]:
    """Return the links of a node's last start."""
    starts = [row for row in node.events if row["event"] == "start"]
    links: list[Row] = json.loads(starts[-1]["detail"])["links"]
    return links


@dataclass
class Set:
    """What is said of one selector over all of its nodes."""

    verdicts: dict[str, str] = field(default_factory=dict)
    digests: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Topics and digest by node."""


def convergence_of(oracle: Oracle) -> dict[tuple[str, tuple[str, ...]], Set]:
    """Return the sets by (filter, excludes): logs without gaps whose positions are known."""
    held: dict[tuple[str, tuple[str, ...]], dict[str, dict[str, tuple[int | None, int]]]] = defaultdict(dict)
    settled: dict[tuple[str, tuple[str, ...]], int] = defaultdict(lambda: NEVER)
    for node in oracle.nodes:
        for link in links_of(node):
            for selector in link["selectors"]:
                key = (selector["filter"], tuple(sorted(selector["exclude"])))
                held[key][node.node] = replay(node, link["name"], selector["filter"])
                span = oracle.span(node, link)
                settled[key] = min(settled[key], span.settled_us, span.silent_us)
                published = replay(oracle.hub, "").items()
                held[key][oracle.hub.node] = {t: v for t, v in published if selected(selector, t)}
    found: dict[tuple[str, tuple[str, ...]], Set] = {}
    for key, members in held.items():
        one = found[key] = Set()
        for topic in {topic for values in members.values() for topic in values}:
            values = [members[name].get(topic, (None, -NEVER)) for name in members]
            if all(digest is None for digest, _ in values):
                continue
            if len({digest for digest, _ in values}) == 1:
                one.verdicts[topic] = "equal"
            else:
                changed_us = max(changed for _, changed in values)
                one.verdicts[topic] = "pending" if changed_us > settled[key] else "apart"
        for name, state in members.items():
            digests = [digest for digest, _ in state.values() if digest is not None]
            one.digests[name] = (len(digests), sum(digests) % 2**64)
    return found


@dataclass
class Stalled:
    """What is said of one topic that stopped at a link."""

    newest_us: int | None
    first_us: int
    reference_us: int
    lacking: int
    stalled_links: int = 0
    current_links: int = 0


def stalls_of(oracle: Oracle) -> tuple[dict[Place, Counter[str]], dict[tuple[Place, str], Stalled]]:
    """Return the topics of each selector by verdict, and the stalled ones."""
    counts: dict[Place, Counter[str]] = {}
    verdicts: dict[tuple[Place, str], str] = {}
    stalled: dict[tuple[Place, str], Stalled] = {}
    for node in oracle.nodes:
        for link in links_of(node):
            from_us, until_us, settled_us, _, gaps = oracle.span(node, link)
            from_us = max(from_us, oracle.since_us - 1) if from_us < oracle.until_us - 1 else NEVER
            for selector in link["selectors"]:
                place = (node.node, link["name"], selector["filter"])
                counts[place] = Counter()
                expected: dict[str, list[int]] = defaultdict(list)
                for row in oracle.hub.updates:
                    at_us = micros(row["origin"])
                    late = at_us > until_us or not oracle.asked(row)
                    if is_update(row) and selected(selector, row["topic"]) and from_us < at_us and not late:
                        expected[row["topic"]].append(at_us)
                came: dict[str, int] = {}
                for row in node.updates:
                    if micros(row["origin"]) >= oracle.until_us:
                        continue
                    if (row["link"], row["selector"]) == place[1:] and (row["phase"] == 0 or row["change"] != 3):
                        came[row["topic"]] = max(came.get(row["topic"], 0), micros(row["origin"]))
                for topic, times in expected.items():
                    old = [at_us for at_us in times if at_us <= settled_us]
                    after_us = max(came.get(topic, -NEVER), from_us)
                    lacking = [at_us for at_us in old if at_us > after_us]
                    if lacking and any(first < max(old) and last > after_us for first, last in gaps):
                        verdict = "unknown"
                    elif lacking:
                        verdict = "stalled"
                        stalled[place, topic] = Stalled(came.get(topic), min(lacking), max(old), len(lacking))
                    else:
                        verdict = "pending" if max(times) > after_us else "current"
                    verdicts[place, topic] = verdict
                    counts[place][verdict] += 1
    for (place, topic), one in stalled.items():
        others = [verdict for (_, other), verdict in verdicts.items() if other == topic]
        one.stalled_links = others.count("stalled")
        one.current_links = others.count("current") + others.count("pending")
        counts[place]["alone"] += one.current_links > 0
    return counts, stalled


def traffic_of(
    hub: NodeLog, *, end_us: int, settle_us: int, depth: int, since_us: int = -NEVER, until_us: int = NEVER
) -> tuple[dict[str, Counter[str]], int]:
    """Return (updates, bytes, retained, topics) by prefix, and how many updates are pending."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    topics: dict[str, set[str]] = defaultdict(set)
    pending = 0
    for row in hub.updates:
        if not is_update(row) or row["topic"].startswith("fanout/control/"):
            continue
        if not since_us <= micros(row["applied"]) < until_us:
            continue
        if micros(row["applied"]) > end_us - settle_us:
            pending += 1
            continue
        prefix = "/".join(row["topic"].split("/")[:depth])
        counts[prefix] += Counter(updates=1, payload_bytes=row["payload_bytes"], retained=int(row["retain"]))
        topics[prefix].add(row["topic"])
    for prefix, seen in topics.items():
        counts[prefix]["topics"] = len(seen)
    return counts, pending
