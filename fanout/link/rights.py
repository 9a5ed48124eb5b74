"""Rights that a link's users need at the primary: which topics they read and write, and what each is for (core).

`fanout.cli.output.acl` writes them in the syntax of a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fanout.config import LinkConfig
from fanout.link.missing_topics import missing_topic
from fanout.link.protocol.control_channel import link_control_topic
from fanout.link.snapshot.capability_check import BY_WILDCARD, RETAINED_COUNT, SERVER_SENTINEL
from fanout.link.snapshot.sys_count import SYSTEM_TOPICS, UPTIME, is_comparable

__all__ = ["Access", "PrimaryKind", "Right", "audit_rights", "link_rights"]

Access: TypeAlias = Literal["read", "write"]
"""Direction of a right: to subscribe and receive, or to publish."""

PrimaryKind: TypeAlias = Literal["mosquitto", "fanout", "other"]
"""Kind of a primary: a link needs different rights at each kind."""

_FANOUT_TOPICS = "$SYS/fanout/#"
"""Topics in which a fanout node tells those below it whether it is ready, and how much a set has."""


@dataclass(frozen=True, slots=True)
class Right:
    """One right at the primary."""

    access: Access
    filter: str
    """Topic Filter of the topics."""
    purpose: str
    """Use of it by the link; a phrase without a full stop."""
    missing: str
    """Effect of its absence; a phrase."""


def link_rights(config: LinkConfig, *, node_id: str, primary: PrimaryKind, in_pool: bool = False) -> tuple[Right, ...]:
    """Return what a link reads and writes at its primary, the selectors first; each right once.

    Args:
        config: The link.
        node_id: This node.
        primary: Its primary.
        in_pool: True if the node is a member of a pool.
    """
    found: dict[tuple[Access, str], Right] = {}
    for right in (*_data(config), *_control(config, node_id, in_pool=in_pool), *_system(config, primary)):
        found.setdefault((right.access, right.filter), right)
    return tuple(found.values())


def audit_rights(config: LinkConfig) -> tuple[Right, ...]:
    """Return what `audit_username` of a link reads at its primary, each right once; none without such a user."""
    if config.audit_username is None:
        return ()
    missing = "missing topics of it stay unconfirmed"
    filters = dict.fromkeys(selector.filter for selector in config.selectors if not selector.live_only)
    return tuple(Right("read", each, "missing topics, requested by name", missing) for each in filters)


def _data(config: LinkConfig) -> Iterator[Right]:
    for selector in config.selectors:
        yield Right("read", selector.filter, "the selector", "its topics do not come, or the subscription is refused")
        if selector.writes == "forward":
            yield Right(
                "write",
                selector.filter,
                'messages of local clients, which writes = "forward" hands on',
                "they are refused",
            )


def _control(config: LinkConfig, node_id: str, *, in_pool: bool) -> Iterator[Right]:
    topics = f"{link_control_topic(config.control_topic, node_id=node_id, link=config.name)}/#"
    purpose = "markers and heartbeats"
    missing = "the evidence is barrier at most, lag is unknown and a stall is not noticed"
    yield Right("read", topics, purpose, missing)
    yield Right("write", topics, purpose, missing)
    if in_pool:
        yield Right(
            "read",
            link_control_topic(config.control_topic, node_id="+", link=config.name),
            "heartbeats of the other members of the pool, to compare values",
            "the node does not notice that it, or another member, is outdated",
        )
    if config.announce_missing:
        topic = missing_topic(config.control_topic).decode()
        yield Right("write", topic, "announcements of missing topics (announce_missing)", "they are dropped")


def _system(config: LinkConfig, primary: PrimaryKind) -> Iterator[Right]:
    if primary == "fanout":
        yield Right("read", _FANOUT_TOPICS, "the primary's readiness and manifest", "the primary refuses the link")
        return
    if is_comparable(config.selectors):
        yield Right(
            "read",
            SYSTEM_TOPICS.decode(),
            "the primary's version as a sentinel, and its count of retained messages",
            "there is no evidence count, and perhaps no sentinel",
        )
        return
    yield Right(
        "read",
        SERVER_SENTINEL.decode(),
        "a sentinel after retained sets, to learn whether the primary answers in order",
        "the link retains a sentinel of its own below its control topic",
    )
    if primary == "other" and any(one.has_wildcard and not one.live_only for one in config.selectors):
        yield Right(
            "read",
            BY_WILDCARD[SERVER_SENTINEL].decode(),
            "the same by a wildcard",
            "a primary that has that topic seems to send no retained messages for wildcards",
        )
    yield Right(
        "read",
        RETAINED_COUNT.decode(),
        "the primary's number of retained messages",
        "the count does not reveal a set that is too small or empty",
    )
    yield Right(
        "read",
        UPTIME.decode(),
        "when it counted them",
        "missing topics stay unconfirmed until an operator confirms them, or other evidence does",
    )
