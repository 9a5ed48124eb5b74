"""Document of `/v1/explain`: all that is known of one topic, as frozen pydantic models.

`fanout.node.explain` fills it, `fanout.api.topic_verdict` judges it, `fanout explain` shows it. No payload is in it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, NonNegativeInt

from fanout.api.models import Document

__all__ = [
    "Finding",
    "FindingKind",
    "LoggedEvent",
    "LoggedUpdate",
    "NearestSelector",
    "PrimaryAnswer",
    "TapFacts",
    "TopicClient",
    "TopicExplanation",
    "TopicFacts",
    "TopicLink",
    "TopicLog",
    "TopicValue",
]

FindingKind = Literal["equal", "differs", "absent", "not_readable", "link", "outside", "refused", "client", "unknown"]
"""Finding in one word; `docs/reference/cli.md` explains each."""


class TopicValue(Document):
    """A retained value, without its payload."""

    digest: str
    """Digest of the topic at the primary and the payload: 16 hexadecimal digits."""
    payload_bytes: NonNegativeInt
    received: AwareDatetime | None = None
    """When it came to the node; null at the primary."""
    expires: AwareDatetime | None = None
    """When it expires; null for never."""


class NearestSelector(Document):
    """The selector that comes closest to a topic that no selector replicates."""

    link: str
    filter: str
    """Its Topic Filter, with its prefix in front."""
    exclude: str | None = None
    """The exclude that keeps the topic out; null for none."""


class TopicLink(Document):
    """The link and the selector that replicate a topic."""

    name: str
    selector: str
    """Topic Filter of the selector at the primary."""
    topic: str
    """The topic's name at the primary."""
    primary: str
    """Address of the primary."""
    username: str | None
    """User Name of the link at the primary; null for none."""
    state: str
    """State of the link, as in `/v1/status`."""
    since: AwareDatetime
    """When the link entered this state; each attempt to connect enters one."""
    current_until: AwareDatetime | None = None
    """Until when the link's values were known to be current: now while it is live and nothing is in doubt; null when
    they never were."""
    reason: str | None
    """Why the link is not ready; null when it is."""
    audited: AwareDatetime | None = None
    """When the newest audit that did not fail ended; null before the first."""
    retained: bool = True
    """True if the selector takes retained values (not `live_only`)."""
    limit: str | None = None
    """Key of the limit that keeps the newest value out; null for none that is known."""
    skipped: str | None = None
    """Why the newest retained message cannot be replicated; null for none that is known."""
    unconfirmed: bool = False
    """True if the newest comparison with the primary did not bring the topic, and its value was kept."""


class PrimaryAnswer(Document):
    """Answer of the primary to a request for the topic by name, as the user of the link."""

    outcome: Literal["value", "absent", "refused", "denied", "unanswered"]
    """`value`: it sent one. `absent`: it sent none. `refused`: its SUBACK refused the topic. `denied`: it refused
    the user. `unanswered`: it could not be reached, or did not answer."""
    value: TopicValue | None = None
    error: str | None = None
    """Why there is no answer; null when there is one."""
    hint: str | None = None
    """Advice about that; null for none."""
    unfit: str | None = None
    """Why the selector does not take this value: `content` or `payload_too_large`."""
    beside_asked: NonNegativeInt = 0
    """Topics beside this one that the node holds and that were requested as well."""
    beside_absent: NonNegativeInt = 0
    """Those of them that did not come either."""


class LoggedUpdate(Document):
    """A row of the replication log about the topic."""

    at: AwareDatetime
    change: str
    """`new`, `replaced`, `removed`, `message`, `unchanged` or `refused`."""
    phase: str
    """`live`, `snapshot` or `audit`."""
    digest: str
    payload_bytes: NonNegativeInt


class LoggedEvent(Document):
    """An event of the replication log, of the topic's link or of the node."""

    at: AwareDatetime
    event: str
    state: str = ""
    selector: str = ""
    detail: str = ""


class TopicLog(Document):
    """The newest rows of the replication log about the topic, oldest first."""

    updates: tuple[LoggedUpdate, ...] = ()
    events: tuple[LoggedEvent, ...] = ()
    """The newest events, heartbeats left out."""
    searched_since: AwareDatetime | None = None
    """Older rows were not searched; null when the whole log was."""
    error: str | None = None
    """Why the log cannot be read; null when it can."""


class TopicClient(Document):
    """A client, as far as delivery of the topic is concerned."""

    client_id: str
    session: bool
    """True if the node has a session of it."""
    connected: bool = False
    """True if it has a Network Connection."""
    filters: tuple[str, ...] = ()
    """Its Topic Filters that match the topic, twenty at most."""
    subscriptions: NonNegativeInt = 0
    """Number of all its subscriptions."""
    denied_by: str | None = None
    """The access rule that keeps the topic from it; null when it may read it."""
    queued_messages: NonNegativeInt = 0
    """Messages that wait for it."""
    queued_bytes: NonNegativeInt = 0
    conflated_topics: NonNegativeInt = 0
    """Topics with only the newest value waiting, because it reads too slowly."""
    slow_seconds: float | None = None
    """How long it has been slow; null when it is not."""
    unknown: str | None = None
    """Why nothing is known about it; null otherwise."""


class TapFacts(Document):
    """The topic at another node, in most cases a tap."""

    node: str
    value: TopicValue | None
    """The value that it holds; null for none."""
    username: str | None
    """User Name of its link at the primary."""
    primary: PrimaryAnswer | None
    """Answer of the primary to its user; null if not asked."""


class TopicFacts(Document):
    """All that is known of one topic."""

    node: str
    topic: str
    """The topic's name at this node."""
    at: AwareDatetime
    """When the question was answered."""
    link: TopicLink | None
    """The link that replicates it; null for a topic outside the selectors."""
    nearest: NearestSelector | None = None
    """Outside the selectors: the closest selector; null without any."""
    own: bool = False
    """True if the value here was published by a client of this node."""
    value: TopicValue | None
    """The value that this node holds; null for none."""
    primary: PrimaryAnswer | None = None
    """Null for a topic outside the selectors."""
    changing: bool = False
    """True if the value here changed each time while the primary was asked."""
    log: TopicLog | None = None
    """Null without a replication log."""
    client: TopicClient | None = None
    """Null when no client was asked about."""
    tap: TapFacts | None = None
    """Null when no other node was asked."""


class Finding(Document):
    """One fault, or the finding that there is none."""

    kind: FindingKind
    text: str
    """One sentence, without a full stop."""
    hint: str = ""
    """Advice; empty for none."""


class TopicExplanation(Document):
    """`/v1/explain`: the explanation of one topic."""

    verdict: Finding
    """The finding that explains most."""
    also: tuple[Finding, ...] = ()
    """All other findings."""
    facts: TopicFacts
