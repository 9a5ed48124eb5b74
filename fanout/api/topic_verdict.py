"""Verdict on one topic: which of the facts explains most (core).

Findings are ordered from the cause to the effect. A topic that nothing replicates comes first, then what the primary or
the node refuses, then the link, then the values, then the client: repairing a later one does not help while an earlier
one stands. "Equal" is the verdict only when nothing else was found.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from fanout.api.topic_facts import (
    Finding,
    LoggedUpdate,
    PrimaryAnswer,
    TopicClient,
    TopicExplanation,
    TopicFacts,
    TopicLink,
    TopicValue,
)
from fanout.escaping import printable

__all__ = ["explain"]

_TEXT_MAX: Final = 200
"""Characters of a topic or filter in a sentence; the facts have all."""
_BESIDE_MIN: Final = 2
"""Topics that must be absent beside the topic before its absence looks like a missing right."""


def explain(facts: TopicFacts) -> TopicExplanation:
    """Return the facts with the verdict on them."""
    found = _findings(facts)
    return TopicExplanation(verdict=found[0], also=tuple(found[1:]), facts=facts)


def _findings(facts: TopicFacts) -> list[Finding]:
    """Return every finding, the one that explains most first; never none."""
    link = facts.link
    found: list[Finding | None]
    if link is None:
        found = [_outside(facts)]
    else:
        found = [_certainly_unreadable(facts, link), _refused(facts, link), _link_is_not_live(facts, link)]
        if found == [None, None, None]:  # each of them tells of the values as well
            found.append(_probably_unreadable(facts, link) or _values(facts, link))
    found.append(None if facts.client is None else _client(facts, facts.client))
    findings = [one for one in found if one is not None]
    if not findings:
        assert link is not None
        findings = [_equal(facts, link)]
    return findings


def _outside(facts: TopicFacts) -> Finding:
    topic, nearest = _quoted(facts.topic), facts.nearest
    if facts.own:
        assert facts.value is not None
        text = f"no link replicates {topic}: a client of this node published its value{_when(facts.value)}"
    elif nearest is not None and nearest.exclude is not None:
        text = f"{topic} is outside the selectors: {_selector(nearest.filter, nearest.link)} excludes it"
        text += f" by {_quoted(nearest.exclude)}"
        return Finding(kind="outside", text=text, hint="Remove the exclude from the selector if the topic is wanted")
    else:
        text = f"{topic} is outside the selectors, so no link replicates it"
    if nearest is None:
        return Finding(kind="outside", text=text, hint="This node has no selectors; ask a secondary or a tap")
    text += f"; the nearest is {_selector(nearest.filter, nearest.link)}"
    return Finding(kind="outside", text=text, hint="Add a selector, or check the spelling and the prefix of the topic")


def _certainly_unreadable(facts: TopicFacts, link: TopicLink) -> Finding | None:
    answer, tap = facts.primary, facts.tap
    assert answer is not None
    user, topic = _user(link), _quoted(link.topic)
    if answer.outcome == "denied":
        return Finding(
            kind="not_readable",
            text=f"the primary does not let {user} in any more, so {topic} cannot be read there: {answer.error}",
            hint=answer.hint or "",
        )
    if answer.outcome == "refused":
        return Finding(
            kind="not_readable",
            text=f"{user} may not read {topic} at the primary: its SUBACK says {answer.error}",
            hint="Give that user the right to read the topic in the access rules (ACL) of the primary",
        )
    seen_by_tap = tap is not None and tap.primary is not None and tap.primary.outcome == "value"
    if answer.outcome == "absent" and seen_by_tap:
        assert tap is not None
        other = _user_named(tap.username)
        return Finding(
            kind="not_readable",
            text=f"{user} may not read {topic} at the primary: it sends the value to {other} of {tap.node}, and not"
            f" to {user}",
            hint="Give that user the right to read the topic in the access rules (ACL) of the primary",
        )
    return None


def _refused(facts: TopicFacts, link: TopicLink) -> Finding | None:
    answer = facts.primary
    assert answer is not None
    topic, selector = _quoted(facts.topic), _selector(link.selector, link.name)
    if link.limit is not None and facts.value is None:
        return Finding(
            kind="refused",
            text=f"the limit {link.limit} keeps the value of {topic} out of this node",
            hint=f"Raise {link.limit} in the configuration, or narrow the selectors",
        )
    if link.skipped is not None and facts.value is None:
        return Finding(
            kind="refused",
            text=f"the message of {topic} at the primary cannot be replicated: {link.skipped}",
            hint="Publish a message there that fits, or exclude the topic from the selector",
        )
    if answer.outcome != "value":
        return None
    assert answer.value is not None
    if not link.retained:
        return Finding(
            kind="refused",
            text=f"{selector} takes no retained values (live_only), so the value of {topic} is not held here",
            hint="Remove live_only from the selector if clients shall get the value when they subscribe",
        )
    if answer.unfit is None:
        return None
    if answer.unfit == "payload_too_large":
        why = f"its {answer.value.payload_bytes:,} bytes are more than max_payload"
    else:
        why = "its kind is not in content"
    return Finding(
        kind="refused",
        text=f"{selector} does not take the value that the primary has for {topic}: {why}",
        hint="Change that key of the selector if the value is wanted",
    )


def _link_is_not_live(facts: TopicFacts, link: TopicLink) -> Finding | None:
    answer = facts.primary
    assert answer is not None
    if link.state == "live":
        return None
    text = f"link {link.name} is {link.state.replace('_', ' ')}"
    if link.current_until is None:
        text += ", and its values have not been proved"
    else:
        text += f", and its values were last known to be current {_time(link.current_until)}"
    if answer.outcome == "value" and _equals(facts.value, answer.value):
        text += f"; the value of {_quoted(facts.topic)} here still equals that of the primary"
    elif answer.outcome == "value":
        text += f"; the primary has another value of {_quoted(facts.topic)} by now"
    elif answer.outcome == "absent" and facts.value is not None:
        text += f"; the primary has no value of {_quoted(facts.topic)} any more"
    else:
        text += f", so the value of {_quoted(facts.topic)} here may be old"
    return Finding(kind="link", text=text, hint=f"The link is {link.reason}" if link.reason else answer.hint or "")


def _probably_unreadable(facts: TopicFacts, link: TopicLink) -> Finding | None:
    answer = facts.primary
    assert answer is not None
    many = answer.beside_asked >= _BESIDE_MIN and answer.beside_absent == answer.beside_asked
    if answer.outcome != "absent" or facts.value is None or not many:
        return None
    user = _user(link)
    return Finding(
        kind="not_readable",
        text=f"the primary sends {user} neither {_quoted(link.topic)} nor any of {answer.beside_asked} topics beside"
        f" it: {user} probably may not read them there any more, or all of them were deleted without a message"
        f"{_kept(link, '; the value here is kept')}",
        hint="Check the access rules (ACL) of the primary for that user; a tap with a user of its own can tell (--tap)",
    )


def _values(facts: TopicFacts, link: TopicLink) -> Finding | None:
    answer, held = facts.primary, facts.value
    assert answer is not None
    if answer.outcome == "unanswered":
        return Finding(
            kind="unknown",
            text=f"the primary could not be asked for {_quoted(link.topic)}: {answer.error}",
            hint=answer.hint or "",
        )
    if answer.outcome == "absent":
        return _absent(facts, link)
    if answer.outcome != "value" or answer.unfit is not None or not link.retained or _equals(held, answer.value):
        return None
    if facts.changing and link.state == "live":
        return None
    assert answer.value is not None
    topic, audit = _quoted(facts.topic), f"Run fanout audit {link.name}, which repairs it"
    if held is None:
        if link.limit is not None:
            return None
        return Finding(
            kind="differs",
            text=f"this node has no value of {topic}, and the primary has one of {answer.value.payload_bytes:,} bytes"
            f"{_removed(facts)}",
            hint=audit,
        )
    former = _former(facts, answer.value.digest)
    if former is not None:
        text = f"the primary has an older value of {topic}: the one that came here {_time(former.at)}, before the value"
        text += " that this node has now; was its database restored?"
    else:
        text = f"the primary has another value of {topic} than this node{_changed(facts, link, answer)}"
    return Finding(kind="differs", text=text, hint=audit)


def _absent(facts: TopicFacts, link: TopicLink) -> Finding:
    user, topic = _user(link), _quoted(link.topic)
    if facts.value is None:
        return Finding(
            kind="absent",
            text=f"neither this node nor its primary {link.primary} has a retained value of {topic}, as far as {user}"
            f" may read there{_removed(facts)}",
            hint="A message without RETAIN is delivered as it comes, and held nowhere; check the publisher, and the"
            " access rules (ACL) of the primary. In a pool: fanout pool compare tells whether another member has one",
        )
    return Finding(
        kind="absent",
        text=f"the primary sends {user} no value of {topic}: it was deleted without a message, {user} may not read it"
        f" any more, or it expired; the value here came{_when(facts.value)}{_kept(link, ', and is kept')}",
        hint="Check the access rules (ACL) of the primary for that user; a tap with a user of its own can tell (--tap)",
    )


def _kept(link: TopicLink, text: str) -> str:
    """Return `text` with what the newest audit made of a value that the primary does not send; empty for nothing."""
    if not link.unconfirmed:
        return ""
    text += ", unconfirmed"
    return text if link.audited is None else f"{text}: the audit that ended {_time(link.audited)} did not bring it"


def _client(facts: TopicFacts, client: TopicClient) -> Finding | None:
    name, topic = f"client {_quoted(client.client_id)}", _quoted(facts.topic)
    hint = ""
    if client.unknown is not None:
        return Finding(kind="unknown", text=f"nothing is known of {name}: {client.unknown}")
    if not client.session:
        text, hint = f"{name} has no session at this node", "Ask the other nodes of the pool, and check its identifier"
    elif client.denied_by is not None and not client.filters:
        text, hint = f"{name} may not read {topic}: {client.denied_by}", "Change [access] and send SIGHUP to the node"
    elif not client.filters:
        text = f"{name} has no subscription to {topic}: of its subscriptions ({client.subscriptions:,}) none matches"
        hint = "A subscription that was refused is not kept: its SUBACK said so to the client"
    elif not client.connected:
        text = f"{name} is not connected; {client.queued_messages:,} messages wait for it"
    elif client.queued_messages or client.conflated_topics or client.slow_seconds is not None:
        since = "" if client.slow_seconds is None else f" for {client.slow_seconds:.0f} s"
        text = f"{name} reads too slowly{since}: {client.queued_messages:,} messages ({client.queued_bytes:,} bytes)"
        text += " wait for it"
        if client.conflated_topics:
            text += f", and of {client.conflated_topics:,} topics only the newest value"
        hint = "Look for a slow network or a busy client"
    else:
        return None
    return Finding(kind="client", text=text, hint=hint)


def _equal(facts: TopicFacts, link: TopicLink) -> Finding:
    assert facts.value is not None
    if facts.changing:
        text = f"the value of {_quoted(facts.topic)} changes too fast to be compared; a new one came"
    else:
        text = f"the value of {_quoted(facts.topic)} here equals that of the primary; it came"
    text += _when(facts.value)
    if facts.client is not None:
        text += f", and client {_quoted(facts.client.client_id)} gets it"
    if link.reason is not None:
        return Finding(kind="equal", text=text, hint=f"But the link is not ready: {link.reason}")
    return Finding(kind="equal", text=text)


def _equals(held: TopicValue | None, other: TopicValue | None) -> bool:
    return held is not None and other is not None and held.digest == other.digest


def _former(facts: TopicFacts, digest: str) -> LoggedUpdate | None:
    """Return the newest row with this digest from before the row of the value that is held; None for none."""
    assert facts.value is not None
    rows = () if facts.log is None else facts.log.updates
    earlier: LoggedUpdate | None = None
    former: LoggedUpdate | None = None
    for row in rows:
        if row.change not in ("new", "replaced"):
            continue
        if row.digest == digest:
            earlier = row
        elif row.digest == facts.value.digest:
            former = earlier
    return former


def _changed(facts: TopicFacts, link: TopicLink, answer: PrimaryAnswer) -> str:
    """Return since when the primary has another value, as closely as anything tells."""
    assert answer.value is not None
    assert facts.value is not None
    tap = None if facts.tap is None else facts.tap.value
    if tap is not None and tap.digest == answer.value.digest and tap.received is not None:
        return f", since about {_time(tap.received)}, when it came to {facts.tap.node if facts.tap else 'the tap'}"
    known = [time for time in (facts.value.received, link.audited) if time is not None]
    if not known:
        return "; since when is not known"
    why = "an audit ended" if max(known) == link.audited else "the value here came"
    return f"; it changed after {_time(max(known))}, when {why}"


def _removed(facts: TopicFacts) -> str:
    """Return what the log says of the end of the value that this node had."""
    if facts.log is None or not facts.log.updates or facts.log.updates[-1].change != "removed":
        return ""
    last = facts.log.updates[-1]
    by = "a removal came" if last.phase == "live" else "an audit, an expiry or the end of a session removed it"
    return f"; {by} here {_time(last.at)}"


def _user(link: TopicLink) -> str:
    return _user_named(link.username)


def _user_named(username: str | None) -> str:
    return "a client without user" if username is None else f"user {printable(username, length_max=_TEXT_MAX)}"


def _selector(topic_filter: str, link: str) -> str:
    return f"selector {_quoted(topic_filter)} of link {link}"


def _quoted(text: str) -> str:
    return f'"{printable(text, length_max=_TEXT_MAX)}"'


def _when(value: TopicValue) -> str:
    return "" if value.received is None else f" {_time(value.received)}"


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
