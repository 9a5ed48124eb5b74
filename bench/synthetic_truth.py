"""Truth of synthetic logs: each figure by the definitions in `docs/reference/reports.md`, on whole arrays.

Works on the arrays of `bench.synthetic_logs` alone, never on files, and shares nothing with the reports but the bounds
of the buckets. `figures` has the form of the report's JSON, and `differences` names each number that is not the same.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.synthetic_logs import FIRST_SEQUENCE, HUB, LINK, T0, Ints, Log, Published, Rows
from fanout.replica.update import ChangeKind, Phase
from fanout.replog.files.schema import FLAG_CONFLATED, FLAG_DUPLICATE, FLAG_OVERTAKEN
from fanout.reports.values.buckets import window_us

__all__ = ["differences", "figures", "missing_sequences"]

Mask = npt.NDArray[np.bool_]
_NEVER = 2**62
_CAUSES = ("restart", "new_epoch", "resumed", "away", "audit", "upstream", "live")
_STORED = (ChangeKind.NEW, ChangeKind.REPLACED, ChangeKind.REMOVED, ChangeKind.UNCHANGED, ChangeKind.REFUSED)


class _Target:
    """One selector of one node: the updates that it had to apply and the fate of each, by position of the update."""

    def __init__(self, published: Published, hub: Log, log: Log, number: int, *, settle_us: int) -> None:
        self.published, self.log, self.number = published, log, number
        selector_of = published.selected(log.filters)
        self.filter = log.filters[number]
        excluded = np.array([any(_below(name, one) for one in log.excluded) for name in published.names])
        self.topics = (selector_of == number) & ~excluded
        held, session = _held(log)
        self.held_us = held
        live = [rows for rows in log.rows if rows.phase is Phase.LIVE]
        self.offset = min(
            int((rows.applied - published.origin[rows.at]).min())
            for rows in live
            if rows.link_epoch == session and len(rows.at)
        )
        end_us = max(row.at_ns // 1000 for _, row in hub.events)
        self.from_us = held - self.offset
        self.until_us = end_us if log.stopped_us is None else min(end_us, log.stopped_us - self.offset)
        ends_us = max(
            *(int(rows.applied.max()) for rows in log.rows if len(rows.at)),
            *(row.at_ns // 1000 for _, row in log.events),
        )
        # A log that ends without a stop is taken to be late: what came later is not judged.
        judged_us = self.until_us if log.stopped_us is not None else min(self.until_us, ends_us - self.offset)
        self.settled_us = judged_us - settle_us
        size = len(published)
        self.applied, self.copied, self.folded = (np.zeros(size, bool) for _ in range(3))
        self.live_rows = self.stale = self.refused = 0
        self.newest_copy = np.full(len(published.names), -1, np.int64)
        for rows in log.rows:
            mine = self.topics[published.topic[rows.at]]
            at = rows.at[mine]
            flags, change = rows.flags[mine], rows.change[mine]
            if rows.phase is not Phase.LIVE:
                self.copied[at] = True
                np.maximum.at(self.newest_copy, published.topic[at], at)
                continue
            folded = flags & FLAG_CONFLATED != 0
            self.folded[at[folded]] = True
            self.applied[at[~folded]] = True
            self.live_rows += int((~folded).sum())
            self.stale += int((flags[~folded] & FLAG_OVERTAKEN != 0).sum())
            self.refused += int((change[~folded] == ChangeKind.REFUSED).sum())
        origin, topic = published.origin, published.topic
        inside = self.topics[topic] & (origin > self.from_us) & (origin <= self.until_us)
        self.settled = inside & (origin <= self.settled_us)
        self.pending = inside & ~self.settled
        self.came = self.applied | self.copied | self.folded
        absent = self.settled & ~self.came
        doubtful = np.zeros(size, bool)
        for first_us, last_us in _gaps(log):
            after = -_NEVER if first_us is None else first_us - self.offset - settle_us
            doubtful |= (origin > after) & (origin <= last_us - self.offset)
        self.missing, self.unknown = absent & ~doubtful, absent & doubtful
        self.cause = np.full(size, _CAUSES.index("live"))
        # Of the spans that cover an update the one that lasts longest gives the cause.
        for after, until, cause in sorted(_absences(log), key=lambda span: span[1]):
            covered = (origin > after - self.offset) & (origin <= until - self.offset)
            self.cause[covered] = _CAUSES.index(cause)

    def updates(self) -> dict[str, Any]:
        """Return the figures of `UpdateFigures`."""
        settled, missing, unknown = (int(one.sum()) for one in (self.settled, self.missing, self.unknown))
        later = self.newest_copy[self.published.topic] > np.arange(len(self.published))
        return {
            "expected": settled,
            "applied": int((self.settled & self.applied).sum()),
            "reobtained": int((self.settled & self.copied & ~self.applied).sum()),
            "conflated": int((self.settled & self.folded & ~self.applied & ~self.copied).sum()),
            "missing": missing,
            "unknown": unknown,
            "superseded": int((self.missing & later).sum()),
            "causes": {
                cause: int((self.missing & (self.cause == number)).sum()) for number, cause in enumerate(_CAUSES)
            }
            | {"hidden": 0, "skipped": 0, "selector": 0, "max_age": 0},
            "pending": int(self.pending.sum()),
            "pending_applied": int((self.pending & self.came).sum()),
            "duplicated": self.live_rows - int(self.applied.sum()),
            "stale": self.stale,
            "refused": self.refused,
            "unreferenced": 0,
            "complete_percent": None if unknown else 100 * (settled - missing) / settled,
            "complete_percent_at_least": 100 * (settled - missing - unknown) / settled,
            "complete_percent_at_most": 100 * (settled - missing) / settled,
            "unseen": 0,
            "unidentified": 0,
        } | _since(self.published.origin, self.missing, self.settled & ~self.unknown)

    def lacking(self, part_of: Ints) -> dict[int, dict[str, Any]]:
        """Return how many updates are missing of each part that lacks any, and since when.

        Args:
            part_of: The number of the part that a topic belongs to, by topic.
        """
        part = part_of[self.published.topic]
        lacks = np.zeros(int(part_of.max()) + 1, bool)
        lacks[part[self.missing]] = True
        at = np.flatnonzero(self.settled & lacks[part])
        at = at[np.argsort(part[at], kind="stable")]
        bounds = np.flatnonzero(np.diff(part[at])) + 1
        return {
            int(part[of_part[0]]): {
                "missing": int(self.missing[of_part].sum()),
                "unknown": int(self.unknown[of_part].sum()),
                **_since(self.published.origin[of_part], self.missing[of_part], ~self.unknown[of_part]),
            }
            for of_part in np.split(at, bounds)
            if len(of_part)
        }

    def finals(self, wanted: tuple[Ints, Ints]) -> dict[str, Any]:
        """Return the figures of `FinalFigures`.

        Args:
            wanted: Values of the primary: positions by topic, and digests.
        """
        log = self.log
        last_epoch = max(epoch for epoch, _ in log.events)
        torn = [row.log_pos for epoch, row in log.events if row.event == "tear_down" and epoch == last_epoch]
        floor = max(torn, default=0)
        standing = [rows for rows in log.rows if rows.node_epoch == last_epoch and rows.first_pos > floor]
        held, digest = _last_values(self.published, standing)
        removal, origin = self.published.removal, self.published.origin
        wants = self.topics & (wanted[0] >= 0) & ~removal[wanted[0]]
        holds = self.topics & (held >= 0) & ~removal[held]
        equal = wants & holds & (wanted[1] == digest)
        changed = np.maximum(
            np.where(wanted[0] >= 0, origin[wanted[0]], -_NEVER), np.where(held >= 0, origin[held], -_NEVER)
        )
        young = ~equal & (changed > self.settled_us)
        counts = {
            "equal": int(equal.sum()),
            "different": int((wants & holds & ~equal & ~young).sum()),
            "absent": int((wants & ~holds & ~young).sum()),
            "extra": int((~wants & holds & ~young).sum()),
            "pending": int(((wants | holds) & young).sum()),
        }
        judged = sum(counts.values()) - counts["pending"]
        percent = 100 * counts["equal"] / judged if judged else None
        return {**counts, "unknown": 0, "equal_percent": percent, "equal_percent_at_least": percent}


def figures(published: Published, logs: Sequence[Log], *, settle_us: int) -> dict[str, Any]:
    """Return what the completeness report, with prefixes of two levels, says in numbers."""
    hub, nodes = logs[0], logs[1:]
    targets = [_Target(published, hub, log, n, settle_us=settle_us) for log in nodes for n in range(len(log.filters))]
    wanted = _last_values(published, hub.rows)
    places = {(target.log.node, target.filter): target for target in targets}
    begin = min(_span(log)[0] for log in logs)
    width = window_us(max(_span(log)[1] for log in logs) - begin)
    size = len(published)
    return {
        "logs": {log.node: _log_figures(log) for log in logs},
        "sequences": [
            {"primary": HUB, "epoch": T0, "first": FIRST_SEQUENCE, "last": FIRST_SEQUENCE + size - 1}
            | {"present": size, "absent": 0}
        ],
        "updates": {place: target.updates() for place, target in places.items()},
        "finals": {place: target.finals(wanted) for place, target in places.items()},
        "missing": sum(int(target.missing.sum()) for target in targets),
        "lacking_topics": {
            (node, name, published.names[topic]): found
            for (node, name), target in places.items()
            for topic, found in target.lacking(np.arange(len(published.names))).items()
        },
        "differing": sum(
            sum(target.finals(wanted)[name] for name in ("different", "absent", "extra")) for target in targets
        ),
        "prefixes": {place: _prefixes(published, target) for place, target in places.items()},
        "prefix_map": _prefix_map(published, targets),
        "complete_over_time": {log.node: _complete_over_time(published, log, targets, width) for log in nodes},
        "propagation": {(log.node, name): found for log in nodes for name, found in _propagation(published, log)},
        "corrected": {(log.node, name): found for log in nodes for name, found in _true_lag(published, log)},
        "over_time": {log.node: _over_time(published, log, width) for log in nodes},
        "heartbeat": {log.node: _distribution(_heartbeats(log)) for log in nodes},
        "clocks": {log.node: _clock(published, log) for log in nodes},
        "ready": {log.node: _ready(log) for log in nodes},
    }


def missing_sequences(published: Published, logs: Sequence[Log], *, settle_us: int) -> set[tuple[str, str, int]]:
    """Return (node, filter, sequence) of every update that is missing for sure."""
    found: set[tuple[str, str, int]] = set()
    for log in logs[1:]:
        for number, topic_filter in enumerate(log.filters):
            target = _Target(published, logs[0], log, number, settle_us=settle_us)
            found |= {(log.node, topic_filter, int(at) + FIRST_SEQUENCE) for at in np.flatnonzero(target.missing)}
    return found


def differences(truth: dict[str, Any], report: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the number of compared figures, and the figures of a report that differ from the truth.

    Args:
        truth: Result of `figures`.
        report: The report's JSON; of a lag report, the truth has to be the parts that it
            has.
    """
    place = "node", "filter"
    lag = report["lag"]
    topics = report["missing_topics"] or {"total": 0, "listed": ()}
    lacking = {tuple(one[name] for name in (*place, "topic")): one for one in topics["listed"]}
    if "lacking_topics" in truth:
        # A report lists only the worst of very many.
        listed = {at: one for at, one in truth["lacking_topics"].items() if at in lacking}
        truth = truth | {"lacking_topics": {"total": len(truth["lacking_topics"]), "listed": listed}}
    said: dict[str, Any] = {
        "logs": {one["node"]: {name: one[name] for name in truth["logs"][one["node"]]} for one in report["logs"]},
        "sequences": (report["reference"] or {}).get("sequences"),
        "updates": {tuple(one[name] for name in place): one["stamped"] for one in report["targets"]},
        "finals": {tuple(one[name] for name in place): one["final"] for one in report["targets"]},
        "missing": (report["missing"] or {}).get("total"),
        "lacking_topics": {
            "total": topics["total"],
            "listed": {at: {name: one[name] for name in _LACKING} for at, one in lacking.items()},
        },
        "differing": (report["differing"] or {}).get("total"),
        "prefixes": {},
        "prefix_map": {
            one["prefix"]: {node["node"]: _counts(node) for node in one["nodes"]}
            for one in (report["prefix_map"] or {}).get("listed", ())
        },
        "complete_over_time": {
            one["node"]: {datetime.fromisoformat(point["at"]): _counts(point) for point in one["points"]}
            for one in (report["over_time"] or {}).get("series", ())
        },
        "propagation": {tuple(one[name] for name in place): one["lag"] for one in lag["propagation"]},
        "corrected": {
            at: _true_within(truth["corrected"][at], one["corrected"])
            for one in lag["propagation"]
            if (at := tuple(one[name] for name in place)) in truth.get("corrected", {})
        },
        "over_time": {one["node"]: [_point(point) for point in one["points"]] for one in lag["over_time"]},
        "heartbeat": {one["node"]: one["lag"] for one in lag["heartbeat"]},
        "clocks": {one["node"]: [one[name] for name in _CLOCK] for one in lag["clocks"]},
        "ready": {one["node"]: [one[name] for name in _READY] for one in report["ready"]["links"]},
    }
    for one in (report["prefixes"] or {}).get("listed", ()):
        said["prefixes"].setdefault((one["node"], one["filter"]), {})[one["prefix"]] = {
            name: one[name] for name in ("expected", *_LACKING)
        }
    pairs = list(_leaves(truth, {part: said[part] for part in truth}, ""))
    return len(pairs), [f"{path}: {got!r}, and {true!r} is true" for path, true, got in pairs if true != got]


_HALF_BUCKET = 0.022
_NEVER_MISSING = {"first_missing": None, "last_missing": None, "going_on": None}
_LACKING = ("missing", "unknown", "first_missing", "last_missing", "going_on")
_CLOCK = ("at_least_us", "estimate_us", "at_most_us")
_READY = ("attempts", "ready", "first_ready_s", "last_ready_s", "most_ready_s", "tear_downs")


def _leaves(truth: Any, said: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(truth, dict) and isinstance(said, dict):
        for key in truth.keys() | said.keys():
            yield from _leaves(truth.get(key), said.get(key), f"{path}/{key}")
    elif isinstance(truth, list) and isinstance(said, list) and len(truth) == len(said):
        for index, (one, other) in enumerate(zip(truth, said, strict=True)):
            yield from _leaves(one, other, f"{path}/{index}")
    else:
        yield path, truth, said


def _below(name: str, topic_filter: str) -> bool:
    return name.startswith(topic_filter.removesuffix("#"))


def _held(log: Log) -> tuple[int, int]:
    firsts = [
        min(
            (row.at_ns // 1000, row.link_epoch) for _, row in log.events if (row.event, row.selector) == ("complete", f)
        )
        for f in log.filters
    ]
    return max(firsts)


def _gaps(log: Log) -> list[tuple[int | None, int]]:
    details = [json.loads(row.detail) for _, row in log.events if row.event == "gap"]
    return [(detail["first_us"], detail["last_us"]) for detail in details]


def _absences(log: Log) -> Iterator[tuple[int, int, str]]:
    """Yield when (after, until, by the node's clock) and why the link was away; it has heartbeats, and no audits."""
    heard_us = left_us = process = session = None
    for epoch, row in log.events:
        at_us = row.at_ns // 1000
        if row.link != LINK:
            continue
        if row.event == "heartbeat" and left_us is None:
            heard_us = at_us - (row.lag_us or 0)
        elif row.event == "state" and row.state != "live":
            left_us = at_us if left_us is None else left_us
        elif row.event == "state":
            if heard_us is not None and left_us is not None:
                cause = "new_epoch" if session != row.link_epoch else "resumed"
                yield heard_us, at_us, "restart" if process != epoch else cause
            heard_us, left_us, process, session = None, None, epoch, row.link_epoch
    if heard_us is not None and left_us is not None:
        yield heard_us, _NEVER, "away"


def _span(log: Log) -> tuple[int, int]:
    times = [row.at_ns // 1000 for _, row in log.events]
    times += [int(time) for rows in log.rows for time in (rows.applied.min(), rows.applied.max())]
    return min(times), max(times)


def _log_figures(log: Log) -> dict[str, Any]:
    return {
        "updates": sum(len(rows.at) for rows in log.rows),
        "events": len(log.events),
        "processes": len({epoch for epoch, _ in log.events}),
        "stopped": log.events[-1][1].event == "stop",
        "gaps": len(_gaps(log)),
        "absent_rows": 0,
    }


def _last_values(published: Published, parts: Sequence[Rows]) -> tuple[Ints, Ints]:
    """Return, for each topic, the position of its last stored value, -1 for none, and the digest that was logged."""
    last = np.full(len(published.names), -1, np.int64)
    digest = np.zeros(len(published.names), np.int64)
    for rows in parts:
        stored = np.isin(rows.change, np.array(_STORED, np.int8))
        topics = published.topic[rows.at[stored]]
        order = np.full(len(published.names), -1, np.int64)
        order[topics] = np.arange(len(topics))  # the last of a topic wins
        seen = np.flatnonzero(order >= 0)
        kept = rows.change[stored] != ChangeKind.REFUSED  # what a limit keeps out leaves no value
        last[seen] = np.where(kept, rows.at[stored], -1)[order[seen]]
        digest[seen] = rows.digest[stored][order[seen]]
    return last, digest


def _since(origin: Ints, missing: Mask, known: Mask) -> dict[str, Any]:
    """Return since when, until when, and whether still, updates are missing; `known` are those that came or did not."""
    if not missing.any():
        return dict(_NEVER_MISSING)
    first, last = int(origin[missing].min()), int(origin[missing].max())
    within = int((known & (origin >= first) & (origin <= last)).sum())
    after = int((known & (origin > last)).sum())
    lost = int(missing.sum())
    has_ended = ((within - lost) / within) ** after <= 0.01
    is_shown = lost >= 3 and after * lost <= within
    times = (
        datetime.fromtimestamp(us // 1_000_000, UTC) + timedelta(microseconds=us % 1_000_000) for us in (first, last)
    )
    first_missing, last_missing = (time.isoformat().replace("+00:00", "Z") for time in times)
    return {
        "first_missing": first_missing,
        "last_missing": last_missing,
        "going_on": False if has_ended else True if is_shown else None,
    }


def _prefixes(published: Published, target: _Target) -> dict[str, dict[str, Any]]:
    prefixes = ["/".join(name.split("/")[:2]) for name in published.names]
    numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(prefixes))}
    of_topic = np.array([numbers[prefix] for prefix in prefixes])
    counts = {
        name: np.bincount(of_topic[published.topic[getattr(target, mask)]], minlength=len(numbers))
        for name, mask in (("expected", "settled"), ("missing", "missing"), ("unknown", "unknown"))
    }
    lacking = target.lacking(of_topic)
    return {
        prefix: {name: int(count[number]) for name, count in counts.items()} | _NEVER_MISSING | lacking.get(number, {})
        for prefix, number in numbers.items()
        if counts["expected"][number]
    }


def _prefix_map(published: Published, targets: Sequence[_Target]) -> dict[str, dict[str, list[int]]]:
    """Return the counts of each prefix at each node, over the node's selectors."""
    found: dict[str, dict[str, list[int]]] = {}
    for target in targets:
        for prefix, counts in _prefixes(published, target).items():
            nodes = found.setdefault(prefix, {})
            so_far = nodes.get(target.log.node, [0, 0, 0])
            nodes[target.log.node] = [one + more for one, more in zip(so_far, _counts(counts), strict=True)]
    return found


def _complete_over_time(
    published: Published, log: Log, targets: Sequence[_Target], width: int
) -> dict[datetime, list[int]]:
    """Return the counts of each window in which a node had to get something, by the window's begin."""
    windows = published.origin // width
    first = int(windows.min())
    counts = [
        sum(
            np.bincount(windows[getattr(target, name)] - first, minlength=int(windows.max()) - first + 1)
            for target in targets
            if target.log is log
        )
        for name in ("settled", "missing", "unknown")
    ]
    return {
        datetime.fromtimestamp((first + number) * width // 1_000_000, UTC): [int(one) for one in row]
        for number, row in enumerate(np.stack(counts, axis=1))
        if row[0]
    }


def _counts(one: dict[str, Any]) -> list[int]:
    return [one[name] for name in ("expected", "missing", "unknown")]


def _lags(published: Published, log: Log) -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
    """Return origin, lag and topic of the rows whose lag counts."""
    origins, lags, topics = [], [], []
    for rows in log.rows:
        if rows.phase is Phase.LIVE:
            at = rows.at[rows.flags & (FLAG_CONFLATED | FLAG_DUPLICATE) == 0]
            applied = rows.applied[rows.flags & (FLAG_CONFLATED | FLAG_DUPLICATE) == 0]
            origins.append(published.origin[at])
            lags.append(applied - published.origin[at])
            topics.append(published.topic[at])
    return np.concatenate(origins), np.concatenate(lags), np.concatenate(topics)


def _propagation(published: Published, log: Log) -> Iterator[tuple[str, dict[str, Any]]]:
    _, lags, topics = _lags(published, log)
    selector_of = published.selected(log.filters)[topics]
    for number, topic_filter in enumerate(log.filters):
        yield topic_filter, _distribution(lags[selector_of == number])


def _true_lag(published: Published, log: Log) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield how long updates really took, by selector: without the difference of the clocks, and no buckets."""
    _, lags, topics = _lags(published, log)
    selector_of = published.selected(log.filters)[topics]
    for number, topic_filter in enumerate(log.filters):
        ordered = np.sort(lags[selector_of == number]) - log.offset
        ranks = {f"p{percent}_us": int(ordered[-(-len(ordered) * percent // 100) - 1]) for percent in (50, 95, 99)}
        yield topic_filter, ranks | {"most_us": int(ordered[-1]), "mean_us": int(ordered.sum()) // len(ordered)}


def _true_within(truth: dict[str, int], corrected: dict[str, int] | None) -> dict[str, int] | None:
    """Return what a report says, but the truth where the report is as right as it claims to be."""
    if corrected is None:
        return None
    shown: dict[str, int] = {}
    for name, true_us in truth.items():
        bucket_us = _HALF_BUCKET * true_us if name.startswith("p") else 1
        right = abs(corrected[name] - true_us) <= corrected["uncertain_us"] + bucket_us
        shown[name] = true_us if right else corrected[name]
    return shown


def _over_time(published: Published, log: Log, width: int) -> list[list[Any]]:
    origins, lags, _ = _lags(published, log)
    windows = origins // width
    order = np.argsort(windows, kind="stable")
    lags, windows = lags[order], windows[order]
    edges = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
    points: list[list[Any]] = []
    for begin, end in itertools.pairwise(edges):
        found = _percentiles(lags[begin:end])
        points.append([end - begin, found["p50_us"], found["p95_us"], found["p99_us"], found["most_us"]])
    return points


def _point(point: dict[str, Any]) -> list[Any]:
    return [point[name] for name in ("rows", "p50_us", "p95_us", "p99_us", "most_us")]


def _heartbeats(log: Log) -> Ints:
    return np.array([row.lag_us for _, row in log.events if row.event == "heartbeat"], np.int64)


class _Percentile(int):
    """A percentile, and equal to what a report may say of it: that is as wrong as half a bucket is wide."""

    __hash__ = int.__hash__

    def __eq__(self, said: object) -> bool:
        """Return whether a report may say this."""
        return isinstance(said, int) and abs(int(self) - said) <= _HALF_BUCKET * abs(int(self)) + 1

    def __ne__(self, said: object) -> bool:
        """Return the opposite."""
        return not self == said


def _percentiles(values: Ints) -> dict[str, int]:
    ordered = np.sort(values)
    least, most = int(ordered[0]), int(ordered[-1])
    found = {"rows": len(ordered), "least_us": least, "most_us": most, "mean_us": int(ordered.sum()) // len(ordered)}
    for percent in (50, 95, 99):
        found[f"p{percent}_us"] = _Percentile(ordered[-(-len(ordered) * percent // 100) - 1])
    return found


def _distribution(values: Ints) -> dict[str, Any]:
    octaves = np.where(values < 1, -1, np.frexp(values.astype(float))[1] - 1)
    cumulative = [
        {"below_us": 2 ** (octave + 1), "rows": int((octaves <= octave).sum())}
        for octave in range(int(octaves.min()), int(octaves.max()) + 1)
    ]
    return {**_percentiles(values), "cumulative": cumulative}


def _clock(published: Published, log: Log) -> list[int]:
    at_most = int(_lags(published, log)[1].min())
    round_trip = int(_heartbeats(log).min())
    return [at_most - round_trip, at_most - round_trip // 2, at_most]


def _ready(log: Log) -> list[Any]:
    begins = [row.at_ns // 1000 for _, row in log.events if row.state == "connecting"]
    lives = [row.at_ns // 1000 for _, row in log.events if row.state == "live"]
    took = [(live - begin) / 1e6 for begin, live in zip(begins, lives, strict=True)]
    torn = Counter(row.event for _, row in log.events if row.link == LINK)["tear_down"]
    return [len(took), len(took), took[0], took[-1], max(took), torn]
