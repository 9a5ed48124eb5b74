"""The tables of snapshots, convergence, stalls and traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fanout.reports.render.table import (
    LINK,
    PLACE,
    Cell,
    Column,
    Table,
    Tone,
    build,
    build_list,
    length,
    moment,
    number,
    of_part,
    selector_cell,
    text,
)
from fanout.reports.render.wording import NBSP, count, counted, percentage, printable, timestamp
from fanout.reports.values import findings

__all__ = ["convergence", "lacking_said", "snapshots", "stalls", "traffic"]

_EPOCH_TONES: dict[str, Tone] = {"ready": "", "pending": "dim", "never": "bad"}


class _MemberOf(NamedTuple):
    of: findings.ConvergenceSet
    member: findings.Member


class _ValueOf(NamedTuple):
    topic: findings.ApartTopic
    value: findings.HeldValue


def lacking_said(topic: findings.StalledTopic) -> str:
    """Return the number of updates that came elsewhere since; at least, if no stamp tells the first of them."""
    return (f"≥{NBSP}" if topic.basis == "unstamped" else "") + count(topic.lacking)


def _member_of(one: _MemberOf) -> findings.Member:
    return one.member


def _value_of(one: _ValueOf) -> findings.HeldValue:
    return one.value


def _ready(epoch: findings.LinkEpoch) -> Cell:
    shown = epoch.verdict if epoch.ready is None else timestamp(epoch.ready)
    return Cell(shown, _EPOCH_TONES[epoch.verdict])


def _selector(one: findings.ConvergenceSet) -> Cell:
    return selector_cell(one.filter, one.exclude)


def _same(one: findings.ConvergenceSet) -> Cell:
    return Cell(count(one.equal), "" if one.equal is None or one.apart or one.unknown else "good")


_LINKS: Final[tuple[Column[findings.LinkSnapshots], ...]] = (
    *LINK,
    number("epochs", lambda one: one.epochs),
    Column("ready", lambda one: Cell(count(one.ready), "" if one.ready else "bad")),
    number("never ready", lambda one: one.never, "bad"),
    number("pending", lambda one: one.pending, "", optional=True),
    length("shortest", lambda one: one.least_ready_s),
    length("longest", lambda one: one.most_ready_s),
    length("latest", lambda one: one.last_ready_s),
    number("topics", lambda one: one.topics),
    text("evidence", lambda one: one.evidence),
    number("tear-downs", lambda one: one.tear_downs, ""),
)

_EPOCHS: Final[tuple[Column[findings.LinkEpoch], ...]] = (
    *LINK,
    moment("began", lambda one: one.begin),
    Column("ready (UTC)", _ready, numeric=False),
    length("took", lambda one: one.ready_s),
    number("selectors", lambda one: one.selectors),
    number("topics", lambda one: one.topics),
    text("evidence", lambda one: one.evidence),
    number("live, times", lambda one: one.entered_live),
    number("tear-downs", lambda one: one.tear_downs, ""),
    moment("last event", lambda one: one.last),
)

_SETS: Final[tuple[Column[findings.ConvergenceSet], ...]] = (
    Column("selector", _selector, numeric=False),
    text("basis", lambda one: one.basis),
    number("members", lambda one: len(one.members)),
    Column("same everywhere", _same),
    number("apart", lambda one: one.apart, "bad"),
    number("pending", lambda one: one.pending, "", optional=True),
    number("unknown", lambda one: one.unknown, "fair", optional=True),
    number("windows compared", lambda one: one.windows_compared),
    number("windows the same", lambda one: one.windows_equal),
    moment("last the same", lambda one: one.last_equal, decimals=0),
)

_MEMBERS: Final[tuple[Column[_MemberOf], ...]] = (
    Column("selector", lambda one: _selector(one.of), numeric=False),
    *of_part(_member_of, LINK),
    number("topics", lambda one: one.member.topics),
    text("digest", lambda one: one.member.digest or ""),
)

_APART: Final[tuple[Column[_ValueOf], ...]] = (
    text("selector", lambda one: one.topic.filter),
    text("topic", lambda one: one.topic.topic),
    *of_part(_value_of, LINK),
    Column("value", lambda one: Cell(one.value.digest) if one.value.digest else Cell("none", "bad"), numeric=False),
)

_STALLS: Final[tuple[Column[findings.StallFigures], ...]] = (
    *PLACE,
    text("basis", lambda one: one.basis),
    number("current", lambda one: one.current),
    number("stalled", lambda one: one.stalled, "fair"),
    number("current elsewhere", lambda one: one.alone, "bad"),
    number("pending", lambda one: one.pending, "", optional=True),
    number("unknown", lambda one: one.unknown, "fair", optional=True),
    length("longest", lambda one: one.most_behind_s),
)

_STALLED: Final[tuple[Column[findings.StalledTopic], ...]] = (
    *PLACE,
    text("topic", lambda one: one.topic),
    Column(
        "newest here (UTC)",
        lambda one: Cell("never came" if one.newest is None else timestamp(one.newest)),
        numeric=False,
    ),
    moment("first lacking", lambda one: one.first_lacking),
    Column("lacking", lambda one: Cell(lacking_said(one), "bad")),
    number("links stalled", lambda one: one.stalled_links),
    number("links current", lambda one: one.current_links),
)


def snapshots(section: findings.SnapshotSection | None) -> list[Table]:
    """Return the epochs of each link in numbers, and the latest of them; nothing where that is not reported."""
    if section is None:
        return []
    note = "From connecting, or from the tear-down before on the same connection, to the first live."
    return [
        build("snapshots", "Epochs of each link", _LINKS, section.links, note),
        build_list("epochs", "Epochs, the latest first", _EPOCHS, section.epochs),
    ]


def convergence(section: findings.ConvergenceSection | None) -> list[Table]:
    """Return what the nodes of each selector hold, and where they differ; nothing where that is not reported."""
    if section is None:
        return []
    note = (
        f"Topics, by whether every member holds the same value. Windows of {section.window_s} s compare the digests "
        f"that nodes logged themselves: the same proves equal values, a difference proves nothing while values change."
    )
    members = [_MemberOf(one, member) for one in section.sets for member in one.members if member.digest is not None]
    held = "Equal digests mean equal values; link – is what was published at the node itself."
    listed, total = ((), 0) if section.apart is None else (section.apart.listed, section.apart.total)
    values = [_ValueOf(topic, value) for topic in listed for value in topic.values]
    in_all = f"{count(total)} topics in all." if total > len(listed) else ""
    return [
        build("convergence", "Do the nodes hold the same values?", _SETS, section.sets, note),
        build("members", "What each node holds", _MEMBERS, members, held),
        build("apart", "Topics with different values", _APART, values, in_all),
    ]


def stalls(section: findings.StallSection | None) -> list[Table]:
    """Return how many topics stopped at each selector, and which; nothing where that is not reported."""
    if section is None:
        return []
    note = (
        "Stalled: the reference has a settled update newer than all that the node got of the topic. Current elsewhere: "
        "another link that selects the topic has it. Longest: from the newest here to the newest at the reference."
    )
    title = "Stalled topics, first those whose newest update another node got"
    return [
        build("stalls", "Topics that stopped", _STALLS, section.targets, note),
        build_list("stalled-topics", title, _STALLED, section.topics),
    ]


def traffic(section: findings.TrafficSection | None) -> list[Table]:
    """Return what was published, in all and by prefix; nothing where that is not reported."""
    if section is None:
        return []
    bounds = {source.source: "" if source.exact else f"≥{NBSP}" for source in section.sources}

    def bounded(name: str, get: Callable[[Any], int]) -> Column[findings.SourceTraffic | findings.PrefixTraffic]:
        return Column(name, lambda one: Cell(bounds[one.source] + count(get(one))))

    sources: tuple[Column[findings.SourceTraffic], ...] = (
        text("seen by", lambda one: one.source),
        text("basis", lambda one: one.basis),
        bounded("updates", lambda one: one.updates),
        bounded("payload bytes", lambda one: one.payload_bytes),
        number("topics", lambda one: one.topics),
        number("prefixes", lambda one: one.prefixes),
        number("pending", lambda one: one.pending, ""),
    )
    prefixes: tuple[Column[findings.PrefixTraffic], ...] = (
        text("seen by", lambda one: one.source),
        text("prefix", lambda one: one.prefix),
        bounded("updates", lambda one: one.updates),
        Column("share", lambda one: Cell(percentage(one.updates_percent))),
        bounded("payload bytes", lambda one: one.payload_bytes),
        Column("share of bytes", lambda one: Cell(percentage(one.bytes_percent))),
        number("topics", lambda one: one.topics),
        number("retained", lambda one: one.retained),
        Column("published at", lambda one: Cell(_publishers(one)), numeric=False),
    )
    note = "Pending: within the settle horizon of the end of the log, and in no other figure."
    title = f"Published, by topic prefix, {counted(section.depth, 'level')}, the busiest first"
    return [
        build("traffic", "What was published", sources, section.sources, note),
        build_list("traffic-prefixes", title, prefixes, section.prefixes),
    ]


def _publishers(prefix: findings.PrefixTraffic) -> str:
    known = [
        f"{printable(one.node)} ({percentage(100 * one.updates / prefix.updates)})"
        for one in prefix.publishers
        if one.node is not None
    ]
    return ", ".join(known) or "not known"
