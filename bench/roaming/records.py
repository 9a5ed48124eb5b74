"""Observations of roaming clients, as values, and the verdict on them.

Pure: it knows no server, no client and no clock. The verdict follows the promises of a pool: nothing that was
acknowledged is lost, nor a session, and nothing published and received at QoS 2 comes twice. After the kill of a member
a message may come twice, if its publisher had to send it again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["FINDINGS_MAX", "Lapse", "Received", "Sent", "Subscriber", "Verdict", "judge"]

FINDINGS_MAX = 20
"""Findings that are told in words; all are counted."""

Stream = tuple[str, int]
"""Client Identifier of a publisher, and QoS at which it published: these messages keep their order."""


@dataclass(slots=True)
class Sent:
    """A numbered message of a publisher; changed until it is acknowledged."""

    publisher: str
    qos: int
    number: int
    """Ascends within one publisher and QoS."""
    at: float
    """When it was first sent."""
    acknowledged: bool = False
    """True if PUBACK, PUBREC or PUBCOMP came."""
    at_risk: bool = False
    """True if it was sent again although the primary may have it: its session was gone, the server refused it, or, with
    kills, no PUBREC had come.
    """


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the application of a subscriber got it; a repeat of a held identifier is no message."""

    publisher: str
    qos: int
    """At which it was published."""
    number: int
    at: float


@dataclass(frozen=True, slots=True)
class Lapse:
    """The time for which a subscriber knows that it had no session, or cannot know."""

    begin: float
    """When its connection was lost, with a session."""
    end: float
    """When its new subscriptions were acknowledged."""


@dataclass(slots=True)
class Subscriber:
    """Subscriptions, messages and answers of one subscriber; changed while it runs."""

    publishers: Mapping[str, int]
    """Publishers to which it subscribed before they began, with the QoS of the subscription."""
    received: list[Received] = field(default_factory=list)
    lapses: list[Lapse] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Messages that came, how often, and violations."""

    published: int
    acknowledged: int
    expected: int
    """Messages, once for each subscriber that has to get them."""
    delivered: int
    """Number of these that came."""
    lost: int
    """Missing, though acknowledged, and no lapse of the subscriber's session explains it."""
    lost_in_lapses: int
    """Missing, within a lapse."""
    doubled: int
    """Further deliveries of messages that were published and received at QoS 2."""
    doubled_at_risk: int
    """Of these, deliveries of messages that their publisher had to send anew."""
    repeated: int
    """Further deliveries at QoS 1, which may be."""
    sessions_told: int
    """Lapses: sessions that were lost, of which their clients were told by Session Present 0."""
    findings_total: int
    findings: tuple[str, ...]
    """The first of them, in words."""

    @property
    def passed(self) -> bool:
        """True if everything was as promised."""
        return not self.findings_total


def judge(sent: Iterable[Sent], subscribers: Mapping[str, Subscriber], *, kills: bool) -> Verdict:
    """Return the verdict on a run that has come to rest.

    Args:
        sent: All messages of all publishers.
        subscribers: By Client Identifier.
        kills: True if members were killed, so that messages at risk may come twice.
    """
    messages = {(each.publisher, each.qos, each.number): each for each in sent}
    findings = [_name(key) + " was never acknowledged" for key, each in messages.items() if not each.acknowledged]
    totals: Counter[str] = Counter()
    for name, subscriber in subscribers.items():
        findings += _judge_one(name, subscriber, messages, totals, kills=kills)
    return Verdict(
        published=len(messages),
        acknowledged=sum(each.acknowledged for each in messages.values()),
        expected=totals["expected"],
        delivered=totals["delivered"],
        lost=totals["lost"],
        lost_in_lapses=totals["lost_in_lapses"],
        doubled=totals["doubled"],
        doubled_at_risk=totals["doubled_at_risk"],
        repeated=totals["repeated"],
        sessions_told=sum(len(subscriber.lapses) for subscriber in subscribers.values()),
        findings_total=len(findings),
        findings=tuple(findings[:FINDINGS_MAX]),
    )


def _judge_one(
    name: str,
    subscriber: Subscriber,
    messages: Mapping[tuple[str, int, int], Sent],
    totals: Counter[str],
    *,
    kills: bool,
) -> list[str]:
    findings = [f"{name} lost its session" for _ in subscriber.lapses]
    counts = Counter((each.publisher, each.qos, each.number) for each in subscriber.received)
    findings += [
        f"{name} got {_name(key)}, which nobody published for it"
        for key in counts
        if key not in messages or key[0] not in subscriber.publishers
    ]
    came: dict[Stream, list[Received]] = defaultdict(list)
    for each in subscriber.received:
        came[each.publisher, each.qos].append(each)
    for key, message in messages.items():
        granted = subscriber.publishers.get(message.publisher)
        if granted is None:
            continue
        totals["expected"] += 1
        count = counts[key]
        totals["delivered"] += count > 0
        if count > 1 and min(granted, message.qos) == 2:
            totals["doubled"] += count - 1
            totals["doubled_at_risk"] += (count - 1) * message.at_risk
            if not (kills and message.at_risk):
                times = ", ".join(f"{each.at:.3f}" for each in came[key[:2]] if each.number == key[2])
                findings.append(f"{name} got {_name(key)} {count} times, at {times}")
        elif count > 1:
            totals["repeated"] += count - 1
        if count or not message.acknowledged:
            continue
        explained = any(_explains(lapse, message, came[key[:2]]) for lapse in subscriber.lapses)
        totals["lost_in_lapses" if explained else "lost"] += 1
        findings.append(f"{name} never got {_name(key)}")
    return findings


def _explains(lapse: Lapse, message: Sent, came: Sequence[Received]) -> bool:
    """Return whether a lapse may have swallowed a message: it was on its way when the session was lost, or after."""
    passed = any(each.number > message.number and each.at < lapse.begin for each in came)
    return message.at <= lapse.end and not passed


def _name(key: tuple[str, int, int]) -> str:
    publisher, qos, number = key
    return f"message {number} of {publisher} at QoS {qos}"
