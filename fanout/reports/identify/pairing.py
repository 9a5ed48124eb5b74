"""Choice of the log that is the reference, and of the link in it that each link is compared with.

Owns the choice of the reference, the groups of its links, and the rules by which two links count as links to the same
primary: by stamps, else by the node that they name as their primary, else by address, else by name. Works on the survey
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fanout.errors import ReportError
from fanout.reports.read.details import LinkConfig
from fanout.reports.read.scope import NEVER_US, Group, Reference, ReferenceKind
from fanout.reports.read.survey import Survey

__all__ = ["ObservedLink", "Pairing", "choose_reference", "names", "observed_links"]

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
        """Its name in a notice."""
        return f"{self.node}/{self.name}"

    @property
    def stamps(self) -> frozenset[str]:
        """Nodes that stamped its updates."""
        return self.survey.stamps(self.node, link=self.name)

    @property
    def upstreams(self) -> frozenset[str]:
        """The fanout nodes that it was connected to."""
        return self.survey.upstreams(self.node, link=self.name)

    @property
    def knows_primary(self) -> bool:
        """True if it names its primary for certain: a fanout node by name, or a broker that is none."""
        return bool(self.upstreams) or self.survey.is_beside_nodes(self.node, link=self.name)

    @property
    def live_rows(self) -> int:
        """Number of updates that it brought."""
        return self.survey.live_rows(self.node, link=self.name)

    @property
    def held_from(self) -> tuple[int, int] | None:
        """When, and in which session, it first held all of its selectors."""
        return self.survey.held_from(self.node, link=self.config, since_epoch=self.since_epoch)

    def likeness(self, other: ObservedLink) -> int:
        """Return how surely two links lead to the same primary: 4 by stamps, 3 by its node, 2 by address, 1 by name.

        0 is that nothing says so.
        """
        if self.stamps and other.stamps:
            return 4 if self.stamps & other.stamps else 0
        if self.upstreams & other.upstreams:
            return 3
        return 2 if self.shares_address(other) else int(self.name == other.name)

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


def observed_links(survey: Survey) -> list[ObservedLink]:
    """Return every link that the logs say is configured."""
    return [
        ObservedLink(survey, node, link, config.since_epoch)
        for node in survey.roles
        for config in (survey.config(node),)
        for link in config.links
    ]


class Pairing:
    """The groups of a reference, and which of them each link is compared with.

    All updates that one node stamped are one group. Each link of a tap is one; in a union, links that lead to the same
    primary are.

    Args:
        survey: Result of the first look, with the gaps that count.
        reference: The reference.
        links: Every link in the logs.

    Attributes:
        groups: The groups; `pair` adds those by which links without stamps are compared with one that stamps.
        notices: A sentence for each link that is left out, or paired on weak grounds.
    """

    def __init__(self, survey: Survey, *, reference: Reference, links: Sequence[ObservedLink]) -> None:
        self._survey = survey
        self._reference = reference
        self._links = links
        self.groups: list[Group] = []
        self.notices: list[str] = []
        if reference.stamps:
            node = reference.nodes[0]
            # A primary's log holds what was published at it; a first-tier node hands on what its links bring, too.
            brought = [link.name for link in links if link.node == node] if reference.kind == "first_tier" else []
            self.groups = [self._stamping(node, links=(*brought, ""))]
            return
        parts: list[list[ObservedLink]] = []
        for link in (link for link in links if link.node in reference.nodes):
            near = [part for part in parts if any(link.likeness(other) for other in part)]
            if reference.kind == "union" and near:
                parts = [part for part in parts if part not in near]
                parts.append([*(member for part in near for member in part), link])
            else:
                parts.append([link])
        for number, part in enumerate(parts):
            self.groups.append(_observed(survey, part, group=number, union=reference.kind == "union"))

    def pair(self, link: ObservedLink) -> Group | None:
        """Return the group that a link is compared with, or None when the reference has none for it."""
        return self._pair_below(link) if self._reference.stamps else self._pair_beside(link)

    def _pair_below(self, link: ObservedLink) -> Group | None:
        """Return the group for a link that a node which stamps may feed."""
        name, group = self._reference.name, self.groups[0]
        fed = [other for other in self._links if other.node != name and _is_fed(other, primary=name, group=group)]
        if link in fed or (not link.stamps and any(link.upstreams & other.upstreams for other in fed)):
            return self._comparable(link, group, whom=name)
        if not link.knows_primary and (group.basis == "unstamped" or not (link.stamps or link.live_rows)):
            return group  # to leave out a link that brought nothing would hide a loss
        if link.stamps or link.knows_primary:
            self.notices.append(f"{link.title} is not compared: its updates do not come from {name}.")
            return None
        if (ground := _ground_to_pair(link, primary=name, fed=fed, links=self._links)) is None:
            self.notices.append(
                f"{link.title} is not compared: its updates carry no stamp, and nothing tells whether they come from "
                f"{name}."
            )
            return None
        self.notices.append(
            f"{link.title} brought no stamps, as over MQTT 3.1.1; {ground}, so it is compared with {name} by value."
        )
        return self._by_value(group)

    def _pair_beside(self, link: ObservedLink) -> Group | None:
        """Return the group for a link that leads to the same primary as a link of the reference."""
        name = self._reference.name
        group_of = {source: group for group in reversed(self.groups) for source in group.sources}
        if self._reference.kind == "union":
            return self._comparable(link, group_of[link.node, link.name], whom="the other secondaries")
        observers = [other for other in self._links if other.node in self._reference.nodes]
        same = [other for other in observers if link.likeness(other)]
        only = len(observers) == 1 and sum(other.node == link.node for other in self._links) == 1
        if not same and only and not (link.stamps and observers[0].stamps):
            same = observers
        if not same:
            self.notices.append(f"{link.title} is not compared: no link of {name} leads to the same primary.")
            return None
        best = max(same, key=link.likeness)  # a name shared by chance must not win over a shared stamp or address
        if link.likeness(best) < 2:
            why = "have the same name" if best.name == link.name else "are the only links of their nodes"
            self.notices.append(
                f"{link.title} and {best.title} name different addresses; as they {why} they are taken to lead "
                f"to the same primary."
            )
        return self._comparable(link, group_of[best.node, best.name], whom=best.title)

    def _stamping(self, node: str, *, links: Sequence[str]) -> Group:
        """Return the group of a node's stamped updates: those published at it, and those of its links."""
        survey, reference = self._survey, self._reference
        stamps = {stamp for link in links for stamp in survey.stamps(node, link=link)}
        unstamped = (
            reference.kind == "primary"
            and bool(survey.live_rows(node, link=""))
            and not survey.live_rows(node, link="", stamped=True)
        )
        gap = any(survey.gaps_of(node, link=link) for link in links)
        # What publishers stamped themselves is exact too, but nothing shows what of that a first-tier node never got.
        own = reference.kind == "primary" or stamps == {node}
        return Group(
            id=0,
            sources=tuple((node, link) for link in links),
            basis="unstamped" if unstamped else "stamped",
            exact=own and not (unstamped or gap),
            stamped_by=tuple(sorted(stamps or ({node} if reference.kind == "primary" else ()))),
            from_us=-NEVER_US,
            end_us=survey.log_span_us(node)[1],
            selections=None,
            gap=gap,
        )

    def _comparable(self, link: ObservedLink, group: Group, *, whom: str) -> Group:
        """Return a group, or that of its values when a link brought updates without the stamps that the group has."""
        if group.basis == "unstamped" or link.stamps or not link.live_rows:
            return group
        self.notices.append(
            f"{link.title} brought no stamps, as over MQTT 3.1.1, so it is compared with {whom} by value."
        )
        return self._by_value(group)

    def _by_value(self, group: Group) -> Group:
        """Return the group of the sources of a stamped one whose basis is the values."""
        for other in self.groups:
            if other.basis == "unstamped" and other.sources == group.sources:
                return other
        observed = [link for link in self._links if (link.node, link.name) in group.sources]
        by_value = replace(group, id=len(self.groups), basis="unstamped", exact=False, stamped_by=())
        # Else what was published at the reference is among them, and it is its own clock.
        if len(observed) == len(group.sources):
            from_us, end_us = _span_by_value(observed)
            by_value = replace(by_value, from_us=from_us, end_us=end_us)
        self.groups.append(by_value)
        return by_value


def names(nodes: Iterable[str]) -> str:
    """Return names for a sentence, in order."""
    return ", ".join(sorted(nodes))


def _observed(survey: Survey, part: list[ObservedLink], *, group: int, union: bool) -> Group:
    origins = [o for link in part if (o := survey.origins_us(link.node, link=link.name)) is not None]
    if origins:
        from_us, end_us = min(first for first, _ in origins), max(last for _, last in origins)
    else:
        from_us, end_us = _span_by_value(part)
    selections = {selection for link in part for selection in link.config.selections}
    return Group(
        id=group,
        sources=tuple((link.node, link.name) for link in part),
        basis="stamped" if origins else "unstamped",
        exact=False,
        stamped_by=tuple(sorted({stamp for link in part for stamp in link.stamps})),
        from_us=from_us,
        end_us=end_us,
        selections=None if union else tuple(sorted(selections)),
        gap=any(survey.gaps_of(link.node, link=link.name) for link in part),
    )


def _is_fed(link: ObservedLink, *, primary: str, group: Group) -> bool:
    """Return True if a link is known to get the updates of a node, directly or through others."""
    return bool(link.stamps & set(group.stamped_by)) or primary in link.survey.nodes_above(link.node, link=link.name)


def _ground_to_pair(
    link: ObservedLink, *, primary: str, fed: Sequence[ObservedLink], links: Sequence[ObservedLink]
) -> str | None:
    """Return why a link that says nothing of its primary is taken to be fed by the reference, or None.

    Links over MQTT 3.1.1 in logs of earlier versions name no node, nor do links that may not read a node's notice.
    """
    if any(link.shares_address(own) for own in links if own.node == primary):
        return None  # it is beside the reference, not below it
    for other in fed:
        if link.shares_address(other):
            return f"it has an address of {other.title}"
    for other in fed:
        if link.name == other.name:
            return f"it has the name of {other.title}"
    is_only = sum(other.node == link.node for other in links) == 1
    return "it is the only link of its node" if is_only and not fed else None


def _span_by_value(part: Sequence[ObservedLink]) -> tuple[int, int]:
    """Return the span in which links that observe a primary show its values, by their own clocks."""
    from_us = min((held[0] for link in part if (held := link.held_from) is not None), default=NEVER_US)
    # One log whose beginning is there says enough.
    from_us = max(from_us, min(link.survey.begins_us(link.node) or from_us for link in part))
    return from_us, max(link.survey.log_span_us(link.node)[1] for link in part)
