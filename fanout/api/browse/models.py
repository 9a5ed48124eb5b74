"""Documents about topics and events, such as `/v1/topics` and `/v1/pool/compare`, as frozen pydantic models."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, NonNegativeFloat, NonNegativeInt

from fanout.api.schema.described import Described

__all__ = [
    "BusyBranch",
    "BusyTopic",
    "DifferingTopicView",
    "EventView",
    "EventsDocument",
    "LiveValue",
    "MemberNotCompared",
    "MessageStamp",
    "PastValue",
    "PoolComparisonDocument",
    "TopTopics",
    "TopicDetail",
    "TopicView",
    "TopicsDocument",
    "TreeChild",
    "TreeDocument",
    "ValueFormat",
]

ValueFormat = Literal["json", "text", "base64"]
"""Form of `value`: a whole JSON document, other UTF-8 text, or bytes in base64."""


class MessageStamp(Described):
    """Identity of a message, the same at every node."""

    node: str
    """The node that stamped it."""
    epoch: NonNegativeInt
    """Epoch of that node: Unix time in microseconds at which it began to count."""
    sequence: NonNegativeInt
    """Number of the message in that epoch."""
    stamped: AwareDatetime
    """When that node received it, by its own clock."""


class PastValue(Described):
    """A value that a topic had."""

    received: AwareDatetime
    """When it came to this node."""
    qos: NonNegativeInt
    payload_bytes: NonNegativeInt
    format: ValueFormat
    value: str
    """The payload; its beginning if `cut`."""
    cut: bool = False
    """True if `value` is only the beginning."""
    stamp: MessageStamp | None = None
    """Its identity; null if no node stamped it."""
    traceparent: str | None = None
    """The User Property `traceparent` (W3C Trace Context); null without a valid one."""


class LiveValue(PastValue):
    """`value` of `/v1/stream`: one message, or one retained value of the set that comes first."""

    topic: str
    retained: bool
    """True for a retained value; an empty one removes the topic."""


class TopicView(PastValue):
    """A topic with its retained value."""

    topic: str
    """The topic's name at this node."""
    link: str | None
    """The link that replicates it; null for a topic of this node's own clients."""
    selector: str | None
    """Topic Filter of the selector at the primary; null without a link."""
    digest: str
    """Digest of the topic at the primary and the payload: 16 hexadecimal digits."""
    expires: AwareDatetime | None = None
    """When it expires; null for never."""
    updates: NonNegativeInt | None = None
    """Messages since somebody looks at this topic; null on a page, and if nobody does."""
    per_second: NonNegativeFloat | None = None
    """Messages a second in the last whole interval, on a busy node an estimate; null while not known."""


class TopicsDocument(Described):
    """`/v1/topics`: a page of topics, in the order of the bytes of their names."""

    topics: tuple[TopicView, ...]
    next: str | None
    """`after` of the next page; null at the end."""
    held: NonNegativeInt | None
    """Topics that the node holds, whatever was asked for; null for users, who may not read all of them."""


class MemberNotCompared(Described):
    """A member of the pool whose topics could not be read."""

    node: str
    """Its `node.id`, or its address before it has answered."""
    reason: str


class DifferingTopicView(Described):
    """A topic that members of a pool hold differently."""

    topic: str
    suspect: str
    """The member to ask first: one without a value, or with the oldest one."""
    values: dict[str, TopicView | None]
    """Member to the beginning of its value; null for none."""


class PoolComparisonDocument(Described):
    """`/v1/pool/compare`: the topics that members of a pool hold differently."""

    node: str
    """The node that compared them."""
    at: AwareDatetime
    """When the comparison ended."""
    members: dict[str, str | None]
    """Members that were compared, and the HTTP address of each; null for the node that compared them."""
    left_out: tuple[MemberNotCompared, ...]
    """Members that were not compared."""
    topics: NonNegativeInt
    """Topics of links that were read, of all members together."""
    changing: NonNegativeInt
    """Topics that changed too quickly to be compared."""
    whole: bool
    """False if there were too many topics, or differences, to compare them all."""
    differing: tuple[DifferingTopicView, ...]
    """In the order of the names; at most 1,001."""


class TopicDetail(Described):
    """`/v1/topics/{topic}`: one topic."""

    topic: str
    held: TopicView | None
    """Its retained value; null for none."""
    changes: tuple[PastValue, ...]
    """Messages that came while somebody looked at this topic, the newest first."""
    readers: NonNegativeInt | None = None
    """Sessions that subscribe to it; null for users, and at a tap."""


class TreeChild(Described):
    """A level below a branch."""

    name: str
    """Name of the level; may be empty."""
    is_topic: bool
    """True if the level ends a topic that has a value."""
    topics: NonNegativeInt
    """Topics at and below it."""
    at_least: bool = False
    """True if there are more topics than that."""
    per_second: NonNegativeFloat | None = None
    """Messages a second at and below it; null while not known."""


class TreeDocument(Described):
    """`/v1/tree`: levels below a branch."""

    prefix: str
    """The branch; empty for the first level of all topics."""
    children: tuple[TreeChild, ...]
    next: str | None
    """`after` of the next page; null at the end."""


class BusyBranch(Described):
    """A branch with many messages."""

    filter: str
    """Topic Filter of the branch, such as `plant/line1/#`."""
    per_second: NonNegativeFloat


class BusyTopic(Described):
    """A topic with many messages."""

    topic: str
    per_second: NonNegativeFloat


class TopTopics(Described):
    """`/v1/top`: the busiest branches and topics of the last whole interval."""

    interval_s: NonNegativeFloat | None
    """Length of the interval in seconds; null before the first one has ended, so ask again."""
    branches: tuple[BusyBranch, ...] = ()
    """At most 100 branches; one with three quarters of its messages in one branch below is left out."""
    topics: tuple[BusyTopic, ...]
    per_second: NonNegativeFloat
    """Messages a second of all topics."""


class LinkLagHistory(Described):
    """Lag of one link over the last hour."""

    name: str
    lags: tuple[NonNegativeFloat | None, ...]
    """Seconds, the oldest first and the newest of now; null where the lag was unknown."""


class LagHistory(Described):
    """`/v1/lag/history`: lag of each link over the last hour."""

    interval_s: NonNegativeFloat
    """Seconds between two figures."""
    links: tuple[LinkLagHistory, ...]


class EventView(Described):
    """One event of a node."""

    id: NonNegativeInt
    """Number since the start of the node; newer events have higher ones."""
    at: AwareDatetime
    kind: str
    """Kind of the event, as in the replication log."""
    link: str | None
    """The link; null if it concerns the whole node."""
    text: str
    """One sentence for people."""
    state: str = ""
    """State that the link entered; empty for other events."""


class EventsDocument(Described):
    """`/v1/events`: newest events, the newest first."""

    process: str = ""
    """Name of the process; `{process}-{id}` is the `Last-Event-ID` of an event."""
    events: tuple[EventView, ...]
    next: int | None
    """`before` of the next page; null at the end of what is remembered."""
