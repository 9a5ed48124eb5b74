"""Document of `/v1/explain`: all that is known of one topic, as frozen pydantic models.

`fanout.node.explain` fills it, `fanout.api.topic_verdict` judges it, `fanout explain` shows it. No payload is in it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt

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


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True)


class TopicValue(_Document):
    """A retained value, without its payload."""

    digest: str = Field(description="Digest of the topic at the primary and the payload: 16 hexadecimal digits.")
    payload_bytes: NonNegativeInt
    received: AwareDatetime | None = Field(default=None, description="When it came to the node; null at the primary.")
    expires: AwareDatetime | None = Field(default=None, description="When it expires; null for never.")


class NearestSelector(_Document):
    """The selector that comes closest to a topic that no selector replicates."""

    link: str
    filter: str = Field(description="Its Topic Filter, with its prefix in front.")
    exclude: str | None = Field(default=None, description="The exclude that keeps the topic out; null for none.")


class TopicLink(_Document):
    """The link and the selector that replicate a topic."""

    name: str
    selector: str = Field(description="Topic Filter of the selector at the primary.")
    topic: str = Field(description="The topic's name at the primary.")
    primary: str = Field(description="Address of the primary.")
    username: str | None = Field(description="User Name of the link at the primary; null for none.")
    state: str = Field(description="State of the link, as in `/v1/status`.")
    since: AwareDatetime = Field(description="When the link entered this state; each attempt to connect enters one.")
    current_until: AwareDatetime | None = Field(
        default=None,
        description="Until when the link's values were known to be current: now while it is live and nothing is in"
        " doubt; null when they never were.",
    )
    reason: str | None = Field(description="Why the link is not ready; null when it is.")
    audited: AwareDatetime | None = Field(
        default=None, description="When the newest audit that did not fail ended; null before the first."
    )
    retained: bool = Field(default=True, description="True if the selector takes retained values (not `live_only`).")
    limit: str | None = Field(
        default=None, description="Key of the limit that keeps the newest value out; null for none that is known."
    )
    skipped: str | None = Field(
        default=None, description="Why the newest retained message cannot be replicated; null for none that is known."
    )
    unconfirmed: bool = Field(
        default=False,
        description="True if the newest comparison with the primary did not bring the topic, and its value was kept.",
    )


class PrimaryAnswer(_Document):
    """Answer of the primary to a request for the topic by name, as the user of the link."""

    outcome: Literal["value", "absent", "refused", "denied", "unanswered"] = Field(
        description="`value`: it sent one. `absent`: it sent none. `refused`: its SUBACK refused the topic. `denied`:"
        " it refused the user. `unanswered`: it could not be reached, or did not answer."
    )
    value: TopicValue | None = None
    error: str | None = Field(default=None, description="Why there is no answer; null when there is one.")
    hint: str | None = Field(default=None, description="Advice about that; null for none.")
    unfit: str | None = Field(
        default=None, description="Why the selector does not take this value: `content` or `payload_too_large`."
    )
    beside_asked: NonNegativeInt = Field(
        default=0, description="Topics beside this one that the node holds and that were requested as well."
    )
    beside_absent: NonNegativeInt = Field(default=0, description="Those of them that did not come either.")


class LoggedUpdate(_Document):
    """A row of the replication log about the topic."""

    at: AwareDatetime
    change: str = Field(description="`new`, `replaced`, `removed`, `message`, `unchanged` or `refused`.")
    phase: str = Field(description="`live`, `snapshot` or `audit`.")
    digest: str
    payload_bytes: NonNegativeInt


class LoggedEvent(_Document):
    """An event of the replication log, of the topic's link or of the node."""

    at: AwareDatetime
    event: str
    state: str = ""
    selector: str = ""
    detail: str = ""


class TopicLog(_Document):
    """The newest rows of the replication log about the topic, oldest first."""

    updates: tuple[LoggedUpdate, ...] = ()
    events: tuple[LoggedEvent, ...] = Field(default=(), description="The newest events, heartbeats left out.")
    searched_since: AwareDatetime | None = Field(
        default=None, description="Older rows were not searched; null when the whole log was."
    )
    error: str | None = Field(default=None, description="Why the log cannot be read; null when it can.")


class TopicClient(_Document):
    """A client, as far as delivery of the topic is concerned."""

    client_id: str
    session: bool = Field(description="True if the node has a session of it.")
    connected: bool = Field(default=False, description="True if it has a Network Connection.")
    filters: tuple[str, ...] = Field(default=(), description="Its Topic Filters that match the topic, twenty at most.")
    subscriptions: NonNegativeInt = Field(default=0, description="Number of all its subscriptions.")
    denied_by: str | None = Field(
        default=None, description="The access rule that keeps the topic from it; null when it may read it."
    )
    queued_messages: NonNegativeInt = Field(default=0, description="Messages that wait for it.")
    queued_bytes: NonNegativeInt = 0
    conflated_topics: NonNegativeInt = Field(
        default=0, description="Topics with only the newest value waiting, because it reads too slowly."
    )
    slow_seconds: float | None = Field(default=None, description="How long it has been slow; null when it is not.")
    unknown: str | None = Field(default=None, description="Why nothing is known about it; null otherwise.")


class TapFacts(_Document):
    """The topic at another node, in most cases a tap."""

    node: str
    value: TopicValue | None = Field(description="The value that it holds; null for none.")
    username: str | None = Field(description="User Name of its link at the primary.")
    primary: PrimaryAnswer | None = Field(description="Answer of the primary to its user; null if not asked.")


class TopicFacts(_Document):
    """All that is known of one topic."""

    node: str
    topic: str = Field(description="The topic's name at this node.")
    at: AwareDatetime = Field(description="When the question was answered.")
    link: TopicLink | None = Field(description="The link that replicates it; null for a topic outside the selectors.")
    nearest: NearestSelector | None = Field(
        default=None, description="Outside the selectors: the closest selector; null without any."
    )
    own: bool = Field(default=False, description="True if the value here was published by a client of this node.")
    value: TopicValue | None = Field(description="The value that this node holds; null for none.")
    primary: PrimaryAnswer | None = Field(default=None, description="Null for a topic outside the selectors.")
    changing: bool = Field(
        default=False, description="True if the value here changed each time while the primary was asked."
    )
    log: TopicLog | None = Field(default=None, description="Null without a replication log.")
    client: TopicClient | None = Field(default=None, description="Null when no client was asked about.")
    tap: TapFacts | None = Field(default=None, description="Null when no other node was asked.")


class Finding(_Document):
    """One fault, or the finding that there is none."""

    kind: FindingKind
    text: str = Field(description="One sentence, without a full stop.")
    hint: str = Field(default="", description="Advice; empty for none.")


class TopicExplanation(_Document):
    """`/v1/explain`: the explanation of one topic."""

    verdict: Finding = Field(description="The finding that explains most.")
    also: tuple[Finding, ...] = Field(default=(), description="All other findings.")
    facts: TopicFacts
