"""The verdict on one topic: which finding comes first when several are true, and what its sentence says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fanout.api.topic_facts import (
    LoggedUpdate,
    NearestSelector,
    PrimaryAnswer,
    TapFacts,
    TopicClient,
    TopicExplanation,
    TopicFacts,
    TopicLink,
    TopicLog,
    TopicValue,
)
from fanout.api.topic_verdict import explain

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
CAME = NOW - timedelta(minutes=10)
AUDITED = NOW - timedelta(minutes=5)
AT_TAP = NOW - timedelta(minutes=2)

HERE = TopicValue(digest="aa", payload_bytes=3, received=CAME)
SAME = PrimaryAnswer(outcome="value", value=TopicValue(digest="aa", payload_bytes=3))
OTHER = PrimaryAnswer(outcome="value", value=TopicValue(digest="bb", payload_bytes=4))
UNFIT = OTHER.model_copy(update={"unfit": "content"})
ABSENT = PrimaryAnswer(outcome="absent", beside_asked=8, beside_absent=0)
BRANCH_ABSENT = PrimaryAnswer(outcome="absent", beside_asked=8, beside_absent=8)
REFUSED = PrimaryAnswer(outcome="refused", error="Not authorized (0x87)")
DENIED = PrimaryAnswer(outcome="denied", error="the primary refused the connection: Bad user name", hint="Check both")
UNANSWERED = PrimaryAnswer(outcome="unanswered", error="cannot connect", hint="Is it running?")

LIVE = TopicLink(
    name="plant",
    selector="plant/#",
    topic="plant/1",
    primary="mqtt://broker:1883",
    username="edge",
    state="live",
    since=CAME,
    reason=None,
)
STALLED = LIVE.model_copy(
    update={"state": "stalled", "current_until": AT_TAP, "reason": "stalled, waits for a heartbeat"}
)
LIMITED = LIVE.model_copy(update={"limit": "topics_max"})
UNCONFIRMED = LIVE.model_copy(update={"unconfirmed": True, "audited": AUDITED})
LIVE_ONLY = LIVE.model_copy(update={"retained": False})

SUBSCRIBED = TopicClient(client_id="panel", session=True, connected=True, filters=("#",), subscriptions=1)
UNSUBSCRIBED = SUBSCRIBED.model_copy(update={"filters": (), "subscriptions": 3})
DENIED_CLIENT = UNSUBSCRIBED.model_copy(update={"denied_by": "access.rule[2] denies it"})
AWAY = SUBSCRIBED.model_copy(update={"connected": False, "queued_messages": 7})
SLOW = SUBSCRIBED.model_copy(
    update={"queued_messages": 12, "queued_bytes": 4_000, "conflated_topics": 5, "slow_seconds": 8.4}
)
STRANGER = TopicClient(client_id="panel", session=False)
UNKNOWN = TopicClient(client_id="panel", session=False, unknown="this node serves no clients")

TAP_SEES = TapFacts(
    node="tap", value=TopicValue(digest="bb", payload_bytes=4, received=AT_TAP), username="tap", primary=OTHER
)


def judged(
    *,
    link: TopicLink | None = LIVE,
    here: TopicValue | None = HERE,
    primary: PrimaryAnswer | None = SAME,
    **further: Any,
) -> TopicExplanation:
    """Return the verdict on a topic that is equal unless told otherwise."""
    facts = TopicFacts(node="edge-1", topic="plant/1", at=NOW, link=link, value=here, primary=primary, **further)
    return explain(facts)


def row(digest: str, change: str, *, phase: str = "live") -> LoggedUpdate:
    """Return a row of the log."""
    return LoggedUpdate(at=CAME, change=change, phase=phase, digest=digest, payload_bytes=3)


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        # One thing is the matter.
        ({}, ["equal"]),
        ({"client": SUBSCRIBED}, ["equal"]),
        ({"primary": OTHER}, ["differs"]),
        ({"here": None}, ["differs"]),
        ({"primary": ABSENT}, ["absent"]),
        ({"here": None, "primary": ABSENT}, ["absent"]),
        ({"here": None, "primary": BRANCH_ABSENT}, ["absent"]),
        ({"primary": BRANCH_ABSENT}, ["not_readable"]),
        ({"primary": ABSENT, "link": UNCONFIRMED}, ["absent"]),
        ({"primary": BRANCH_ABSENT, "link": UNCONFIRMED}, ["not_readable"]),
        ({"primary": SAME, "link": UNCONFIRMED}, ["equal"]),
        ({"primary": REFUSED}, ["not_readable"]),
        ({"primary": DENIED}, ["not_readable"]),
        ({"primary": UNANSWERED}, ["unknown"]),
        ({"primary": OTHER, "changing": True}, ["equal"]),
        # Nothing replicates it: whatever the client does, it gets nothing from a primary.
        ({"link": None, "here": None, "primary": None}, ["outside"]),
        ({"link": None, "here": None, "primary": None, "client": UNSUBSCRIBED}, ["outside", "client"]),
        ({"link": None, "primary": None, "own": True, "client": SUBSCRIBED}, ["outside"]),
        # A refused user is why the link is down, and a right that is missing is not repaired by the link.
        ({"link": STALLED, "primary": DENIED}, ["not_readable", "link"]),
        ({"link": STALLED, "primary": REFUSED}, ["not_readable", "link"]),
        ({"primary": ABSENT, "tap": TAP_SEES}, ["not_readable"]),
        ({"primary": BRANCH_ABSENT, "tap": TAP_SEES}, ["not_readable"]),
        ({"link": STALLED, "primary": ABSENT, "tap": TAP_SEES}, ["not_readable", "link"]),
        # A value that is never taken stays away, also over a link that is live again.
        ({"here": None, "primary": UNFIT}, ["refused"]),
        ({"here": None, "primary": OTHER, "link": LIVE_ONLY}, ["refused"]),
        ({"here": None, "primary": OTHER, "link": LIMITED}, ["refused"]),
        ({"here": None, "primary": UNANSWERED, "link": LIMITED}, ["refused"]),
        ({"here": None, "primary": UNFIT, "link": STALLED}, ["refused", "link"]),
        ({"here": None, "primary": ABSENT, "link": LIVE_ONLY}, ["absent"]),
        ({"primary": SAME, "link": LIMITED}, ["equal"]),
        # The link is the cause of any difference in the values.
        ({"link": STALLED}, ["link"]),
        ({"link": STALLED, "primary": OTHER}, ["link"]),
        ({"link": STALLED, "primary": ABSENT}, ["link"]),
        ({"link": STALLED, "primary": BRANCH_ABSENT}, ["link"]),
        ({"link": STALLED, "primary": UNANSWERED}, ["link"]),
        ({"link": STALLED, "primary": OTHER, "changing": True}, ["link"]),
        # The client comes last: as long as the value is wrong here, it would get the wrong one.
        ({"client": STRANGER}, ["client"]),
        ({"client": UNSUBSCRIBED}, ["client"]),
        ({"client": DENIED_CLIENT}, ["client"]),
        ({"client": AWAY}, ["client"]),
        ({"client": SLOW}, ["client"]),
        ({"client": UNKNOWN}, ["unknown"]),
        ({"primary": OTHER, "client": UNSUBSCRIBED}, ["differs", "client"]),
        ({"link": STALLED, "client": SLOW}, ["link", "client"]),
    ],
)
def test_the_cause_comes_before_the_effect(facts: dict[str, Any], kinds: list[str]) -> None:
    """The verdict is the first finding; the others are told too, and each thing once."""
    found = judged(**facts)
    assert [one.kind for one in (found.verdict, *found.also)] == kinds


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, 'the value of "plant/1" here equals that of the primary; it came 2026-03-01 11:50:00 UTC'),
        (
            {"primary": OTHER},
            'the primary has another value of "plant/1" than this node; it changed after 2026-03-01 11:50:00 UTC, when'
            " the value here came",
        ),
        (
            {"primary": OTHER, "link": LIVE.model_copy(update={"audited": AUDITED})},
            'the primary has another value of "plant/1" than this node; it changed after 2026-03-01 11:55:00 UTC, when'
            " an audit ended",
        ),
        (
            {"primary": OTHER, "tap": TAP_SEES},
            'the primary has another value of "plant/1" than this node, since about 2026-03-01 11:58:00 UTC, when it'
            " came to tap",
        ),
        (
            {"primary": OTHER, "log": TopicLog(updates=(row("bb", "new"), row("aa", "replaced")))},
            'the primary has an older value of "plant/1": the one that came here 2026-03-01 11:50:00 UTC, before the'
            " value that this node has now; was its database restored?",
        ),
        (
            {"here": None, "primary": OTHER, "log": TopicLog(updates=(row("bb", "new"), row("00", "removed")))},
            'this node has no value of "plant/1", and the primary has one of 4 bytes; a removal came here 2026-03-01'
            " 11:50:00 UTC",
        ),
        (
            {"here": None, "primary": OTHER, "log": TopicLog(updates=(row("00", "removed", phase="audit"),))},
            'this node has no value of "plant/1", and the primary has one of 4 bytes; an audit, an expiry or the end of'
            " a session removed it here 2026-03-01 11:50:00 UTC",
        ),
        (
            {"primary": ABSENT},
            'the primary sends user edge no value of "plant/1": it was deleted without a message, user edge may not'
            " read it any more, or it expired; the value here came 2026-03-01 11:50:00 UTC",
        ),
        (
            {"primary": ABSENT, "link": UNCONFIRMED},
            'the primary sends user edge no value of "plant/1": it was deleted without a message, user edge may not'
            " read it any more, or it expired; the value here came 2026-03-01 11:50:00 UTC, and is kept, unconfirmed:"
            " the audit that ended 2026-03-01 11:55:00 UTC did not bring it",
        ),
        (
            {"primary": BRANCH_ABSENT, "link": UNCONFIRMED.model_copy(update={"audited": None})},
            'the primary sends user edge neither "plant/1" nor any of 8 topics beside it: user edge probably may not'
            " read them there any more, or all of them were deleted without a message; the value here is kept,"
            " unconfirmed",
        ),
        (
            {"here": None, "primary": ABSENT, "link": LIVE.model_copy(update={"username": None})},
            'neither this node nor its primary mqtt://broker:1883 has a retained value of "plant/1", as far as a client'
            " without user may read there",
        ),
        (
            {"primary": REFUSED},
            'user edge may not read "plant/1" at the primary: its SUBACK says Not authorized (0x87)',
        ),
        (
            {"link": STALLED, "primary": OTHER},
            "link plant is stalled, and its values were last known to be current 2026-03-01 11:58:00 UTC; the primary"
            ' has another value of "plant/1" by now',
        ),
        (
            {"link": STALLED},
            "link plant is stalled, and its values were last known to be current 2026-03-01 11:58:00 UTC; the value of"
            ' "plant/1" here still equals that of the primary',
        ),
        (
            {"link": STALLED.model_copy(update={"current_until": None}), "primary": UNANSWERED},
            'link plant is stalled, and its values have not been proved, so the value of "plant/1" here may be old',
        ),
        ({"here": None, "link": LIMITED}, 'the limit topics_max keeps the value of "plant/1" out of this node'),
        (
            {"here": None, "primary": OTHER.model_copy(update={"unfit": "payload_too_large"})},
            'selector "plant/#" of link plant does not take the value that the primary has for "plant/1": its 4 bytes'
            " are more than max_payload",
        ),
        (
            {"client": SLOW},
            'client "panel" reads too slowly for 8 s: 12 messages (4,000 bytes) wait for it, and of 5 topics only the'
            " newest value",
        ),
        ({"client": AWAY}, 'client "panel" is not connected; 7 messages wait for it'),
        ({"client": DENIED_CLIENT}, 'client "panel" may not read "plant/1": access.rule[2] denies it'),
        (
            {"link": None, "primary": None, "own": True},
            'no link replicates "plant/1": a client of this node published its value 2026-03-01 11:50:00 UTC',
        ),
        (
            {
                "link": None,
                "primary": None,
                "here": None,
                "nearest": NearestSelector(link="plant", filter="plant/+/a", exclude="plant/1"),
            },
            '"plant/1" is outside the selectors: selector "plant/+/a" of link plant excludes it by "plant/1"',
        ),
    ],
)  # fmt: skip
def test_the_sentence_says_what_is_the_matter(facts: dict[str, Any], text: str) -> None:
    """One sentence, with times, the user and the key that decides."""
    assert judged(**facts).verdict.text == text


def test_rows_before_the_present_value_are_told_from_later_ones() -> None:
    """The primary's value came here after the present one: then its database was not restored; the log is ahead."""
    rows = (row("aa", "new"), row("bb", "replaced"))
    assert "another value" in judged(primary=OTHER, log=TopicLog(updates=rows)).verdict.text
    unchanged = (row("bb", "unchanged"), row("aa", "replaced"))
    assert "another value" in judged(primary=OTHER, log=TopicLog(updates=unchanged)).verdict.text


def test_texts_of_strangers_are_escaped_and_bounded() -> None:
    """A topic may turn the direction of a line, and have 65,535 bytes."""
    facts = TopicFacts(node="edge-1", topic="a\u202eb" + "x" * 5000, at=NOW, link=None, value=None)
    text = explain(facts).verdict.text
    assert "\u202e" not in text
    assert "a\\u202eb" in text
    assert len(text) < 400
