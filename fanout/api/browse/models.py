"""Documents about topics and events, such as `/v1/topics` and `/v1/pool/compare`, as frozen pydantic models."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

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


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True)


class MessageStamp(_Document):
    """Identity of a message, the same at every node."""

    node: str = Field(description="The node that stamped it.")
    epoch: NonNegativeInt = Field(
        description="Epoch of that node: Unix time in microseconds at which it began to count."
    )
    sequence: NonNegativeInt = Field(description="Number of the message in that epoch.")
    stamped: AwareDatetime = Field(description="When that node received it, by its own clock.")


class PastValue(_Document):
    """A value that a topic had."""

    received: AwareDatetime = Field(description="When it came to this node.")
    qos: NonNegativeInt
    payload_bytes: NonNegativeInt
    format: ValueFormat
    value: str = Field(description="The payload; its beginning if `cut`.")
    cut: bool = Field(default=False, description="True if `value` is only the beginning.")
    stamp: MessageStamp | None = Field(default=None, description="Its identity; null if no node stamped it.")
    traceparent: str | None = Field(
        default=None, description="The User Property `traceparent` (W3C Trace Context); null without a valid one."
    )


class LiveValue(PastValue):
    """`value` of `/v1/stream`: one message, or one retained value of the set that comes first."""

    topic: str
    retained: bool = Field(description="True for a retained value; an empty one removes the topic.")


class TopicView(PastValue):
    """A topic with its retained value."""

    topic: str = Field(description="The topic's name at this node.")
    link: str | None = Field(description="The link that replicates it; null for a topic of this node's own clients.")
    selector: str | None = Field(description="Topic Filter of the selector at the primary; null without a link.")
    digest: str = Field(description="Digest of the topic at the primary and the payload: 16 hexadecimal digits.")
    expires: AwareDatetime | None = Field(default=None, description="When it expires; null for never.")
    updates: NonNegativeInt | None = Field(
        default=None, description="Messages since somebody looks at this topic; null on a page, and if nobody does."
    )
    per_second: NonNegativeFloat | None = Field(
        default=None,
        description="Messages a second in the last whole interval, on a busy node an estimate; null while not known.",
    )


class TopicsDocument(_Document):
    """`/v1/topics`: a page of topics, in the order of the bytes of their names."""

    topics: tuple[TopicView, ...]
    next: str | None = Field(description="`after` of the next page; null at the end.")
    held: NonNegativeInt | None = Field(
        description="Topics that the node holds, whatever was asked for; null for users, who may not read all of them."
    )


class MemberNotCompared(_Document):
    """A member of the pool whose topics could not be read."""

    node: str = Field(description="Its `node.id`, or its address before it has answered.")
    reason: str


class DifferingTopicView(_Document):
    """A topic that members of a pool hold differently."""

    topic: str
    suspect: str = Field(description="The member to ask first: one without a value, or with the oldest one.")
    values: dict[str, TopicView | None] = Field(description="Member to the beginning of its value; null for none.")


class PoolComparisonDocument(_Document):
    """`/v1/pool/compare`: the topics that members of a pool hold differently."""

    node: str = Field(description="The node that compared them.")
    at: AwareDatetime = Field(description="When the comparison ended.")
    members: dict[str, str | None] = Field(
        description="Members that were compared, and the HTTP address of each; null for the node that compared them."
    )
    left_out: tuple[MemberNotCompared, ...] = Field(description="Members that were not compared.")
    topics: NonNegativeInt = Field(description="Topics of links that were read, of all members together.")
    changing: NonNegativeInt = Field(description="Topics that changed too quickly to be compared.")
    whole: bool = Field(description="False if there were too many topics, or differences, to compare them all.")
    differing: tuple[DifferingTopicView, ...] = Field(description="In the order of the names; at most 1,001.")


class TopicDetail(_Document):
    """`/v1/topics/{topic}`: one topic."""

    topic: str
    held: TopicView | None = Field(description="Its retained value; null for none.")
    changes: tuple[PastValue, ...] = Field(
        description="Messages that came while somebody looked at this topic, the newest first."
    )
    readers: NonNegativeInt | None = Field(
        default=None, description="Sessions that subscribe to it; null for users, and at a tap."
    )


class TreeChild(_Document):
    """A level below a branch."""

    name: str = Field(description="Name of the level; may be empty.")
    is_topic: bool = Field(description="True if the level ends a topic that has a value.")
    topics: NonNegativeInt = Field(description="Topics at and below it.")
    at_least: bool = Field(default=False, description="True if there are more topics than that.")
    per_second: NonNegativeFloat | None = Field(
        default=None, description="Messages a second at and below it; null while not known."
    )


class TreeDocument(_Document):
    """`/v1/tree`: levels below a branch."""

    prefix: str = Field(description="The branch; empty for the first level of all topics.")
    children: tuple[TreeChild, ...]
    next: str | None = Field(description="`after` of the next page; null at the end.")


class BusyBranch(_Document):
    """A branch with many messages."""

    filter: str = Field(description="Topic Filter of the branch, such as `plant/line1/#`.")
    per_second: NonNegativeFloat


class BusyTopic(_Document):
    """A topic with many messages."""

    topic: str
    per_second: NonNegativeFloat


class TopTopics(_Document):
    """`/v1/top`: the busiest branches and topics of the last whole interval."""

    interval_s: NonNegativeFloat | None = Field(
        description="Length of the interval in seconds; null before the first one has ended, so ask again."
    )
    branches: tuple[BusyBranch, ...] = Field(
        default=(),
        description="At most 100 branches; one with three quarters of its messages in one branch below is left out.",
    )
    topics: tuple[BusyTopic, ...]
    per_second: NonNegativeFloat = Field(description="Messages a second of all topics.")


class LinkLagHistory(_Document):
    """Lag of one link over the last hour."""

    name: str
    lags: tuple[NonNegativeFloat | None, ...] = Field(
        description="Seconds, the oldest first and the newest of now; null where the lag was unknown."
    )


class LagHistory(_Document):
    """`/v1/lag/history`: lag of each link over the last hour."""

    interval_s: NonNegativeFloat = Field(description="Seconds between two figures.")
    links: tuple[LinkLagHistory, ...]


class EventView(_Document):
    """One event of a node."""

    id: NonNegativeInt = Field(description="Number since the start of the node; newer events have higher ones.")
    at: AwareDatetime
    kind: str = Field(description="Kind of the event, as in the replication log.")
    link: str | None = Field(description="The link; null if it concerns the whole node.")
    text: str = Field(description="One sentence for people.")
    state: str = Field(default="", description="State that the link entered; empty for other events.")


class EventsDocument(_Document):
    """`/v1/events`: newest events, the newest first."""

    process: str = Field(
        default="", description="Name of the process; `{process}-{id}` is the `Last-Event-ID` of an event."
    )
    events: tuple[EventView, ...]
    next: int | None = Field(description="`before` of the next page; null at the end of what is remembered.")
