"""Members of a pool as text: verdicts with their reasons, and a table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fanout.api.browse.pool_values import DifferingTopic, PoolComparison
    from fanout.api.models import PoolDocument, PoolMember

__all__ = ["comparison_lines", "leaving_lines", "pool_lines"]

_TOPIC_CHARACTERS_MAX: Final = 120


def pool_lines(document: PoolDocument) -> list[RenderableType]:
    """Return the verdict on a pool with its reasons, and the table of its members."""
    from rich.padding import Padding

    from fanout.cli.output.quantities import counted
    from fanout.cli.output.terminal import styled

    answer = ("ready", "green") if document.ready else ("not ready", "red")
    return [
        styled(f"the pool of {counted(len(document.members), 'member')}, seen by {document.node}, is ", answer),
        *(Padding(reason, (0, 0, 0, 2)) for reason in document.reasons),
        *_differing_lines(document),
        "",
        _members_table(document),
        *_copies_table(document),
    ]


def comparison_lines(found: PoolComparison, members: Mapping[str, str], *, limit: int) -> list[RenderableType]:
    """Return the verdict on what members hold, and a table of at most `limit` topics that differ.

    Args:
        found: The comparison.
        members: Name of each member, and its HTTP address.
        limit: Most topics in the table.
    """
    from fanout.cli.output.quantities import counted
    from fanout.cli.output.terminal import styled

    held = f"{', '.join(members)} hold {counted(found.topics, 'topic')}: "
    if found.differing:
        verdict = (f"{counted(len(found.differing), 'topic')} differ{'s' if len(found.differing) == 1 else ''}", "red")
    else:
        verdict = ("no topic differs", "green")
    lines: list[RenderableType] = [styled(held, verdict)]
    if not found.whole:
        lines.append("  So many seem to differ that the topics after them were not read")
    if found.changing:
        lines.append(f"  {counted(found.changing, 'topic')} changed too quickly to be compared")
    if found.differing:
        lines += ["", _differing_table(found.differing[:limit])]
        if len(found.differing) > limit:
            lines += ["", f"{limit:,} of {len(found.differing):,} topics; --limit shows more"]
        lines += ["", f"fanout explain {_suspect(found.differing[0], members)} says why"]
    return lines


def _differing_table(differing: Sequence[DifferingTopic]) -> Table:
    from fanout.cli.output.quantities import as_bytes
    from fanout.cli.output.terminal import columns
    from fanout.escaping import printable

    table = columns("topic", "member", "bytes", "received", "digest", right=("bytes",))
    for one in differing:
        topic = printable(one.topic, length_max=_TOPIC_CHARACTERS_MAX)
        for member, held in one.values.items():
            if held is None:
                table.add_row(topic, member, "no value", "", "")
            else:
                table.add_row(
                    topic, member, as_bytes(held.payload_bytes), f"{held.received:%Y-%m-%d %H:%M:%S}", held.digest
                )
            topic = ""
    return table


def _suspect(one: DifferingTopic, members: Mapping[str, str]) -> str:
    """Return a topic and the address of a member that lacks it, or has the oldest value, as arguments of a command."""
    from fanout.escaping import printable

    return f"{printable(shlex.quote(one.topic), length_max=_TOPIC_CHARACTERS_MAX)} {members[one.suspect]}"


def _differing_lines(document: PoolDocument) -> list[RenderableType]:
    differing = [member for member in document.members if member.digest_equal is False]
    if not differing:
        return []
    since = min((one.digest_equal_since for one in differing if one.digest_equal_since is not None), default=None)
    text = "fanout pool compare names the topics that differ"
    return [f"  {text}" if since is None else f"  {text}, since {since:%Y-%m-%d %H:%M:%S} UTC"]


def leaving_lines(document: PoolDocument) -> list[RenderableType]:
    """Return the verdict on whether the node that answered may be stopped, with its reasons."""
    from rich.padding import Padding

    from fanout.cli.output.quantities import counted
    from fanout.cli.output.terminal import styled

    if document.stay_reasons:
        return [
            styled(f"{document.node} ", ("should stay", "red")),
            *(Padding(reason, (0, 0, 0, 2)) for reason in document.stay_reasons),
        ]
    own, *others = document.members
    sessions = "" if own.sessions is None else f" for its {counted(own.sessions, 'session')}"
    ready = f", {counted(len(others), 'other member')} {'is' if len(others) == 1 else 'are'} ready{sessions}"
    return [styled(f"{document.node} ", ("may be stopped", "green"), ready)]


def _copies_table(document: PoolDocument) -> list[RenderableType]:
    """Return the table of copies; nothing where no member keeps any."""
    from fanout.cli.output.quantities import UNKNOWN, as_count, as_duration
    from fanout.cli.output.terminal import columns

    keeping = [member for member in document.members if member.copies_held is not None]
    if not keeping:
        return []
    numbers = ("sessions", "copied", "copies held", "oldest on its way", "history", "used")
    table = columns("member", *numbers, right=numbers)
    for member in keeping:
        used = UNKNOWN if member.history_used_ratio is None else f"{member.history_used_ratio:.0%}"
        late, history = as_duration(member.copies_late_seconds), as_duration(member.history_seconds)
        counts = as_count(member.sessions), as_count(member.sessions_copied), as_count(member.copies_held)
        table.add_row(member.node or UNKNOWN, *counts, late, history, used)
    return ["", table]


def _values(member: PoolMember, unlike: int) -> str:
    """Return whether a member holds what the node that answers holds; `unlike` members do not."""
    from fanout.cli.output.quantities import UNKNOWN

    if member.is_self and unlike:
        return f"unlike {unlike}"
    return {True: "equal", False: "differ", None: UNKNOWN}[member.digest_equal]


def _members_table(document: PoolDocument) -> Table:
    from fanout.cli.output.quantities import UNKNOWN, as_count, as_duration
    from fanout.cli.output.terminal import columns

    numbers = ("topics", "sessions", "in/out", "lag")
    table = columns("member", "address", "state", *numbers, "replicates", "values", "version", right=numbers)
    own = document.members[0].config_digest if document.members else None
    unlike = sum(member.digest_equal is False for member in document.members)
    for member in document.members:
        if member.config_digest is None:
            replicates = UNKNOWN
        else:
            replicates = "the same" if member.config_digest == own else "something else"
        table.add_row(
            member.node or UNKNOWN,
            member.address or "this node",
            (member.state or "not_ready").replace("_", " ") if member.reachable else "not reachable",
            as_count(member.topics),
            as_count(member.sessions),
            UNKNOWN if member.moved_in is None or member.moved_out is None else f"{member.moved_in}/{member.moved_out}",
            as_duration(member.lag),
            replicates,
            _values(member, unlike),
            member.version or UNKNOWN,
        )
    return table
