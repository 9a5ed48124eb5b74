"""The tables of snapshots, convergence, stalls and traffic."""

from __future__ import annotations

from fanout.reports.render.table import PLACE, Cell, Column, Table, Tone, build, count_cell
from fanout.reports.render.wording import NBSP, NOTHING, count, counted, percentage, printable, seconds, timestamp
from fanout.reports.values.findings import (
    ConvergenceSection,
    PrefixTraffic,
    SnapshotSection,
    StallSection,
    TrafficSection,
)

__all__ = ["convergence", "snapshots", "stalls", "traffic"]

_EPOCH_TONES: dict[str, Tone] = {"ready": "", "pending": "dim", "never": "bad"}


def snapshots(section: SnapshotSection | None) -> list[Table]:
    """Return the epochs of each link in numbers, and the latest of them; nothing where that is not reported."""
    if section is None:
        return []
    links = build(
        "snapshots",
        "Epochs of each link",
        (
            *PLACE[:2],
            Column("epochs"),
            Column("ready"),
            Column("never ready"),
            Column("pending", optional=True),
            Column("shortest"),
            Column("longest"),
            Column("latest"),
            Column("topics"),
            Column("evidence", numeric=False),
            Column("tear-downs"),
        ),
        [
            (
                Cell(printable(link.node)),
                Cell(printable(link.link)),
                Cell(count(link.epochs)),
                Cell(count(link.ready), "" if link.ready else "bad"),
                count_cell(link.never, "bad"),
                count_cell(link.pending),
                Cell(seconds(link.least_ready_s)),
                Cell(seconds(link.most_ready_s)),
                Cell(seconds(link.last_ready_s)),
                Cell(count(link.topics)),
                Cell(printable(link.evidence) or NOTHING),
                count_cell(link.tear_downs),
            )
            for link in section.links
        ],
        "From connecting, or from the tear-down before on the same connection, to the first live.",
    )
    epochs = build(
        "epochs",
        "Epochs, the latest first",
        (
            *PLACE[:2],
            Column("began (UTC)", numeric=False),
            Column("ready (UTC)", numeric=False),
            Column("took"),
            Column("selectors"),
            Column("topics"),
            Column("evidence", numeric=False),
            Column("live, times"),
            Column("tear-downs"),
            Column("last event (UTC)", numeric=False),
        ),
        [
            (
                Cell(printable(epoch.node)),
                Cell(printable(epoch.link)),
                Cell(timestamp(epoch.begin)),
                Cell(epoch.verdict if epoch.ready is None else timestamp(epoch.ready), _EPOCH_TONES[epoch.verdict]),
                Cell(seconds(epoch.ready_s)),
                Cell(count(epoch.selectors)),
                Cell(count(epoch.topics)),
                Cell(printable(epoch.evidence) or NOTHING),
                Cell(count(epoch.entered_live)),
                count_cell(epoch.tear_downs),
                Cell(timestamp(epoch.last)),
            )
            for epoch in section.epochs.listed
        ],
        total=section.epochs.total,
    )
    return [links, epochs]


def convergence(section: ConvergenceSection | None) -> list[Table]:
    """Return what the nodes of each selector hold, and where they differ; nothing where that is not reported."""
    if section is None:
        return []
    sets = build(
        "convergence",
        "Do the nodes hold the same values?",
        (
            PLACE[2],
            Column("basis", numeric=False),
            Column("members"),
            Column("same everywhere"),
            Column("apart"),
            Column("pending", optional=True),
            Column("unknown", optional=True),
            Column("windows compared"),
            Column("windows the same"),
            Column("last the same (UTC)", numeric=False),
        ),
        [
            (
                Cell(_selector(one.filter, one.exclude)),
                Cell(one.basis),
                Cell(count(len(one.members))),
                Cell(count(one.equal), "" if one.equal is None or one.apart or one.unknown else "good"),
                count_cell(one.apart, "bad"),
                count_cell(one.pending),
                count_cell(one.unknown, "fair"),
                Cell(count(one.windows_compared)),
                Cell(count(one.windows_equal)),
                Cell(timestamp(one.last_equal, decimals=0)),
            )
            for one in section.sets
        ],
        f"Topics, by whether every member holds the same value. Windows of {section.window_s} s compare the digests "
        f"that nodes logged themselves: the same proves equal values, a difference proves nothing while values change.",
    )
    members = build(
        "members",
        "What each node holds",
        (PLACE[2], *PLACE[:2], Column("topics"), Column("digest", numeric=False)),
        [
            (
                Cell(_selector(one.filter, one.exclude)),
                Cell(printable(member.node)),
                Cell(printable(member.link) or NOTHING),
                Cell(count(member.topics)),
                Cell(member.digest),
            )
            for one in section.sets
            for member in one.members
            if member.digest is not None
        ],
        "Equal digests mean equal values; link – is what was published at the node itself.",
    )
    listed = () if section.apart is None else section.apart.listed
    total = 0 if section.apart is None else section.apart.total
    apart = build(
        "apart",
        "Topics with different values",
        (PLACE[2], Column("topic", numeric=False), *PLACE[:2], Column("value", numeric=False)),
        [
            (
                Cell(printable(topic.filter)),
                Cell(printable(topic.topic)),
                Cell(printable(value.node)),
                Cell(printable(value.link) or NOTHING),
                Cell(value.digest or "none", "" if value.digest else "bad"),
            )
            for topic in listed
            for value in topic.values
        ],
        f"{count(total)} topics in all." if total > len(listed) else "",
    )
    return [sets, members, apart]


def stalls(section: StallSection | None) -> list[Table]:
    """Return how many topics stopped at each selector, and which; nothing where that is not reported."""
    if section is None:
        return []
    targets = build(
        "stalls",
        "Topics that stopped",
        (
            *PLACE,
            Column("basis", numeric=False),
            Column("current"),
            Column("stalled"),
            Column("current elsewhere"),
            Column("pending", optional=True),
            Column("unknown", optional=True),
            Column("longest"),
        ),
        [
            (
                Cell(printable(target.node)),
                Cell(printable(target.link)),
                Cell(printable(target.filter)),
                Cell(target.basis),
                Cell(count(target.current)),
                count_cell(target.stalled, "fair"),
                count_cell(target.alone, "bad"),
                count_cell(target.pending),
                count_cell(target.unknown, "fair"),
                Cell(seconds(target.most_behind_s)),
            )
            for target in section.targets
        ],
        "Stalled: the reference has a settled update newer than all that the node got of the topic. Current elsewhere: "
        "another link that selects the topic has it. Longest: from the newest here to the newest at the reference.",
    )
    topics = build(
        "stalled-topics",
        "Stalled topics, first those whose newest update another node got",
        (
            *PLACE,
            Column("topic", numeric=False),
            Column("newest here (UTC)", numeric=False),
            Column("first lacking (UTC)", numeric=False),
            Column("lacking"),
            Column("links stalled"),
            Column("links current"),
        ),
        [
            (
                Cell(printable(topic.node)),
                Cell(printable(topic.link)),
                Cell(printable(topic.filter)),
                Cell(printable(topic.topic)),
                Cell("never came" if topic.newest is None else timestamp(topic.newest)),
                Cell(timestamp(topic.first_lacking)),
                Cell(count(topic.lacking), "bad"),
                Cell(count(topic.stalled_links)),
                Cell(count(topic.current_links)),
            )
            for topic in section.topics.listed
        ],
        total=section.topics.total,
    )
    return [targets, topics]


def traffic(section: TrafficSection | None) -> list[Table]:
    """Return what was published, in all and by prefix; nothing where that is not reported."""
    if section is None:
        return []
    bounds = {source.source: "" if source.exact else f"≥{NBSP}" for source in section.sources}
    sources = build(
        "traffic",
        "What was published",
        (
            Column("seen by", numeric=False),
            Column("basis", numeric=False),
            Column("updates"),
            Column("payload bytes"),
            Column("topics"),
            Column("prefixes"),
            Column("pending"),
        ),
        [
            (
                Cell(printable(source.source)),
                Cell(source.basis),
                Cell(bounds[source.source] + count(source.updates)),
                Cell(bounds[source.source] + count(source.payload_bytes)),
                Cell(count(source.topics)),
                Cell(count(source.prefixes)),
                count_cell(source.pending),
            )
            for source in section.sources
        ],
        "Pending: within the settle horizon of the end of the log, and in no other figure.",
    )
    prefixes = build(
        "traffic-prefixes",
        f"Published, by topic prefix, {counted(section.depth, 'level')}, the busiest first",
        (
            Column("seen by", numeric=False),
            Column("prefix", numeric=False),
            Column("updates"),
            Column("share"),
            Column("payload bytes"),
            Column("share of bytes"),
            Column("topics"),
            Column("retained"),
            Column("published at", numeric=False),
        ),
        [
            (
                Cell(printable(prefix.source)),
                Cell(printable(prefix.prefix)),
                Cell(bounds[prefix.source] + count(prefix.updates)),
                Cell(percentage(prefix.updates_percent)),
                Cell(bounds[prefix.source] + count(prefix.payload_bytes)),
                Cell(percentage(prefix.bytes_percent)),
                Cell(count(prefix.topics)),
                Cell(count(prefix.retained)),
                Cell(_publishers(prefix)),
            )
            for prefix in section.prefixes.listed
        ],
        total=section.prefixes.total,
    )
    return [sources, prefixes]


def _selector(topic_filter: str, exclude: tuple[str, ...]) -> str:
    return printable(topic_filter) + (f" ({len(exclude)} excluded)" if exclude else "")


def _publishers(prefix: PrefixTraffic) -> str:
    known = [
        f"{printable(one.node)} ({percentage(100 * one.updates / prefix.updates)})"
        for one in prefix.publishers
        if one.node is not None
    ]
    return ", ".join(known) or "not known"
