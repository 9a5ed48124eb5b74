"""Which log is the reference, and which link is compared with which of its links.

Owns the choice of the reference, the groups of its links, and the rules by which two links are taken to lead
to the same primary: by stamps, else by address, else by name. Works on the survey alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fanout.errors import ReportError
from fanout.reports.read.details import LinkConfig
from fanout.reports.read.scope import NEVER_US, Group, Reference, ReferenceKind, Source
from fanout.reports.read.survey import Survey

__all__ = ["ObservedLink", "choose_reference", "make_groups", "names", "pair_link"]

_KINDS: dict[str, ReferenceKind] = {"primary": "primary", "tap": "tap", "secondary": "secondary"}


@dataclass(frozen=True, slots=True)
class ObservedLink:
    """A configured link, with what the logs say of it."""

    survey: Survey
    node: str
    config: LinkConfig
    since_epoch: int

    @property
    def name(self) -> str:
        """The link's name."""
        return self.config.name

    @property
    def title(self) -> str:
        """What a notice calls it."""
        return f"{self.node}/{self.name}"

    @property
    def stamps(self) -> frozenset[str]:
        """Who stamped what it brought."""
        return self.survey.stamps(self.node, link=self.name)

    @property
    def upstreams(self) -> frozenset[str]:
        """The fanout nodes that it was connected to; over MQTT 3.1.1 none says its name."""
        return self.survey.upstreams(self.node, link=self.name)

    @property
    def live_rows(self) -> int:
        """How many updates it brought."""
        return self.survey.live_rows(self.node, link=self.name)

    @property
    def held_from(self) -> tuple[int, int] | None:
        """When, and in which session, it first held all of its selectors."""
        return self.survey.held_from(self.node, link=self.config, since_epoch=self.since_epoch)

    def same_primary(self, other: ObservedLink) -> bool:
        """Return whether two links lead to the same primary, as far as the logs tell."""
        if self.stamps and other.stamps:
            return bool(self.stamps & other.stamps)
        return self.shares_address(other) or self.name == other.name

    def shares_address(self, other: ObservedLink) -> bool:
        """Return whether two links name a common address."""
        return bool(set(self.config.addresses) & set(other.config.addresses))


def choose_reference(roles: dict[str, str], *, requested: str | None, first_tier: Sequence[str] = ()) -> Reference:
    """Return the reference: the one asked for, else the only primary, first-tier node or tap, else the union.

    Args:
        roles: The role of each node in the logs.
        first_tier: The secondaries that stamp for the nodes below them.
        requested: The node to take; None chooses.

    Raises:
        ReportError: It is not in the logs, several could be meant, or there is nothing to compare.
    """
    if not roles:
        raise ReportError("the logs hold no row", hint="Give the directories that nodes wrote their logs to")
    if requested is not None:
        if requested not in roles:
            raise ReportError(f"the reference {requested} is not in the logs", hint=f"They are of {names(roles)}")
        kind = "first_tier" if requested in first_tier else _KINDS.get(roles[requested], "secondary")
        return Reference(kind, (requested,), "asked for")
    stamping = first_tier if len(roles) > 1 else ()
    candidates: dict[ReferenceKind, tuple[str, Sequence[str]]] = {
        "primary": ("of role primary", [node for node in roles if roles[node] == "primary"]),
        "first_tier": ("that stamp for nodes below them", stamping),
        "tap": ("of role tap", [node for node in roles if roles[node] == "tap"]),
    }
    for kind, (title, found) in candidates.items():
        if len(found) > 1:
            raise ReportError(
                f"the logs hold {len(found)} nodes {title}: {names(found)}", hint="Name one with --reference"
            )
        if found:
            what = "node that stamps for others" if kind == "first_tier" else kind
            return Reference(kind, (found[0],), f"the only {what} in the logs")
    if len(roles) < 2:
        raise ReportError(
            f"there is nothing to compare {names(roles)} with",
            hint="Add the log of the primary, of a tap, or of another secondary",
        )
    return Reference("union", tuple(roles), "neither a primary nor a tap is in the logs")


def make_groups(
    survey: Survey, *, reference: Reference, links: Iterable[ObservedLink]
) -> tuple[list[Group], list[Source]]:
    """Return the groups of the reference and the sources in them.

    What a node stamped is one group. Each link of a tap is one; in a union, links that lead to the same primary are.
    """
    if reference.kind == "primary":
        return _published(survey, reference.nodes[0])
    if reference.kind == "first_tier":
        return _handed_on(survey, [link for link in links if link.node in reference.nodes])
    parts: list[list[ObservedLink]] = []
    for link in links:
        if link.node not in reference.nodes:
            continue
        near = [part for part in parts if any(link.same_primary(other) for other in part)]
        if reference.kind == "union" and near:
            parts = [part for part in parts if part not in near]
            parts.append([*(member for part in near for member in part), link])
        else:
            parts.append([link])
    groups: list[Group] = []
    sources: list[Source] = []
    for part in parts:
        groups.append(_observed(survey, part, group=len(groups), union=reference.kind == "union"))
        sources.extend(Source(link.node, link.name, groups[-1].id) for link in part)
    return groups, sources


def pair_link(
    link: ObservedLink,
    *,
    reference: Reference,
    groups: list[Group],
    sources: list[Source],
    links: list[ObservedLink],
    notices: list[str],
) -> Group | None:
    """Return the group that a link is compared with, or None when the reference has none for it.

    Args:
        link: The link.
        reference: The reference.
        groups: Its groups.
        sources: The sources in them.
        links: Every link in the logs.
        notices: Gets a sentence when the link is left out, or paired on weak grounds.

    To groups and sources those are added by which links without stamps are compared with a reference that stamps.
    """
    if reference.stamps:
        primary = reference.nodes[0]
        if _fed_by(link, primary=primary, group=groups[0]):
            return groups[0]
        if link.stamps or link.upstreams:
            notices.append(f"{link.title} is not compared: its updates do not come from {reference.name}.")
            return None
        if (ground := _ground_to_pair(link, primary=primary, group=groups[0], links=links)) is None:
            notices.append(
                f"{link.title} is not compared: its updates carry no stamp, and nothing tells whether they come from "
                f"{reference.name}."
            )
            return None
        notices.append(
            f"{link.title} brought no stamps, as over MQTT 3.1.1; {ground}, so it is compared with {reference.name} by "
            f"value."
        )
        return _by_value(groups[0], groups=groups, sources=sources, links=links)
    group_of = {(source.node, source.link): groups[source.group] for source in reversed(sources)}
    if reference.kind == "union":
        group, whom = group_of[link.node, link.name], "the union"
        return _comparable(link, group, whom=whom, groups=groups, sources=sources, links=links, notices=notices)
    observers = [other for other in links if other.node in reference.nodes]
    same = [other for other in observers if link.same_primary(other)]
    only = len(observers) == 1 and sum(other.node == link.node for other in links) == 1
    if not same and only and not (link.stamps and observers[0].stamps):
        same = observers
    if not same:
        notices.append(f"{link.title} is not compared: no link of {reference.name} leads to the same primary.")
        return None
    # A name shared by chance must not win over a shared stamp or address.
    best = max(same, key=lambda other: (bool(link.stamps & other.stamps), link.shares_address(other)))
    if not link.stamps & best.stamps and not link.shares_address(best):
        why = "have the same name" if best.name == link.name else "are the only links of their nodes"
        notices.append(
            f"{link.title} and {best.title} name different addresses; as they {why} they are taken to lead "
            f"to the same primary."
        )
    group, whom = group_of[best.node, best.name], best.title
    return _comparable(link, group, whom=whom, groups=groups, sources=sources, links=links, notices=notices)


def names(nodes: Iterable[str]) -> str:
    """Return names for a sentence, in order."""
    return ", ".join(sorted(nodes))


def _published(survey: Survey, node: str) -> tuple[list[Group], list[Source]]:
    stamps = survey.stamps(node, link="") or frozenset({node})
    unstamped = bool(survey.live_rows(node, link="")) and not survey.live_rows(node, link="", stamped=True)
    gap = bool(survey.gaps_of(node, link=""))
    group = Group(
        id=0,
        basis="unstamped" if unstamped else "stamped",
        exact=not (unstamped or gap),
        stamped_by=tuple(sorted(stamps)),
        from_us=-NEVER_US,
        end_us=survey.log_span_us(node)[1],
        selections=None,
        gap=gap,
    )
    return [group], [Source(node, "", group.id)]


def _handed_on(survey: Survey, links: Sequence[ObservedLink]) -> tuple[list[Group], list[Source]]:
    """Return what a first-tier node hands on: what its links brought it, and what was published at it."""
    node = links[0].node
    sources = [*(Source(node, link.name, 0) for link in links), Source(node, "", 0)]
    stamps = {stamp for source in sources for stamp in survey.stamps(node, link=source.link)}
    gap = any(survey.gaps_of(node, link=source.link) for source in sources)
    group = Group(
        id=0,
        basis="stamped",
        # What publishers stamped themselves is exact too, but nothing shows what of that the node never got.
        exact=stamps == {node} and not gap,
        stamped_by=tuple(sorted(stamps)),
        from_us=-NEVER_US,
        end_us=survey.log_span_us(node)[1],
        selections=None,
        gap=gap,
    )
    return [group], sources


def _observed(survey: Survey, part: list[ObservedLink], *, group: int, union: bool) -> Group:
    origins = [o for link in part if (o := survey.origins_us(link.node, link=link.name)) is not None]
    if origins:
        from_us, end_us = min(first for first, _ in origins), max(last for _, last in origins)
    else:
        from_us, end_us = _span_by_value(part)
    selections = {selection for link in part for selection in link.config.selections}
    return Group(
        id=group,
        basis="stamped" if origins else "unstamped",
        exact=False,
        stamped_by=tuple(sorted({stamp for link in part for stamp in link.stamps})),
        from_us=from_us,
        end_us=end_us,
        selections=None if union else tuple(sorted(selections)),
        gap=any(survey.gaps_of(link.node, link=link.name) for link in part),
    )


def _fed_by(link: ObservedLink, *, primary: str, group: Group) -> bool:
    if link.stamps & set(group.stamped_by):
        return True
    if link.upstreams:
        return primary in link.upstreams
    if group.basis == "stamped":
        # The reference stamps everything, so what came without its stamp came from elsewhere. A link that
        # brought nothing yet is taken to be fed by it, since to leave it out would hide a loss.
        return not link.stamps and not link.live_rows
    return True


def _ground_to_pair(link: ObservedLink, *, primary: str, group: Group, links: Sequence[ObservedLink]) -> str | None:
    """Return why a link that nothing is known of is taken to be fed by the reference, or None."""
    if any(link.shares_address(own) for own in links if own.node == primary):
        return None  # it is beside the reference, not below it
    others = [o for o in links if o.node != primary and (o.node, o.name) != (link.node, link.name)]
    fed = [other for other in others if other.stamps & set(group.stamped_by) or primary in other.upstreams]
    for other in fed:
        if link.shares_address(other):
            return f"it has an address of {other.title}"
    for other in fed:
        if link.name == other.name:
            return f"it has the name of {other.title}"
    return None if fed or any(other.node == link.node for other in others) else "it is the only link of its node"


def _comparable(
    link: ObservedLink,
    group: Group,
    *,
    whom: str,
    groups: list[Group],
    sources: list[Source],
    links: Sequence[ObservedLink],
    notices: list[str],
) -> Group:
    """Return a group, or that of its values when a link brought updates without the stamps that the group has."""
    if group.basis == "unstamped" or link.stamps or not link.live_rows:
        return group
    notices.append(f"{link.title} brought no stamps, as over MQTT 3.1.1, so it is compared with {whom} by value.")
    return _by_value(group, groups=groups, sources=sources, links=links)


def _by_value(group: Group, *, groups: list[Group], sources: list[Source], links: Sequence[ObservedLink]) -> Group:
    """Return the group of the sources of a stamped one whose basis is the values."""
    own = [(source.node, source.link) for source in sources if source.group == group.id]
    for other in groups:
        if other.basis == "unstamped" and own == [(one.node, one.link) for one in sources if one.group == other.id]:
            return other
    observed = [link for link in links if (link.node, link.name) in own]
    by_value = replace(group, id=len(groups), basis="unstamped", exact=False, stamped_by=())
    if len(observed) == len(own):  # else what was published at the reference is among them, and it is its own clock
        from_us, end_us = _span_by_value(observed)
        by_value = replace(by_value, from_us=from_us, end_us=end_us)
    groups.append(by_value)
    sources.extend(Source(node, name, by_value.id) for node, name in own)
    return by_value


def _span_by_value(part: Sequence[ObservedLink]) -> tuple[int, int]:
    """Return from when until when links that observe a primary tell by values what it had, by their own clocks."""
    from_us = min((held[0] for link in part if (held := link.held_from) is not None), default=NEVER_US)
    # One log whose beginning is there says enough.
    from_us = max(from_us, min(link.survey.begins_us(link.node) or from_us for link in part))
    return from_us, max(link.survey.log_span_us(link.node)[1] for link in part)
