"""The rules of sampling: what is drawn, what an answer shows, when it rests."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fanout.chain.stamp import encode_stamp
from fanout.config import LinkConfig
from fanout.errors import LinkLost, PrimaryRefused
from fanout.link.model.audit_report import AuditReport
from fanout.link.protocol.name_request import NAMES_MAX, NamedAnswer
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.sampling import COST_FACTOR, REST_MAX_S, REST_MIN_S, Drawn, Sampling, Verdict, why_never
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Phase, Stamp, Update, content_digest
from fanout.selection import Selector
from tests.link.fake_primary import make_config, make_context

NOW_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
PASSWORD = PrimaryRefused("the primary refused the connection: Bad user name or password", reason_code=0x86)


def value(topic: str, payload: bytes = b"old", *, expires_ns: int = 0, received_ns: int = NOW_NS) -> Update:
    """Return a retained update of a local topic."""
    name = topic.encode()
    return (name, payload, 1, True, b"", received_ns, expires_ns, content_digest(name, payload), None)


def made(config: LinkConfig | None = None, *updates: Update) -> tuple[Sampling, LinkContext]:
    """Return the sampling of a link that holds some values."""
    context = make_context(config)
    context.replica.apply(list(updates), phase=Phase.SNAPSHOT)
    return Sampling(context.config, replica=context.replica, pipeline=context.pipeline, seed=1), context


def row(topic: str, payload: bytes = b"old", properties: bytes = b"") -> PublishRow:
    """Return a retained message of the primary."""
    return (topic.encode(), payload, 1, 0, properties, None, 0 if properties else -1)


def answer(
    *rows: PublishRow, absent: frozenset[str] = frozenset(), refused: dict[str, int] | None = None
) -> NamedAnswer:
    """Return an answer of the primary."""
    return NamedAnswer(MappingProxyType({each[0].decode(): each for each in rows}), absent, refused or {})


def compared(sampling: Sampling, told: NamedAnswer) -> tuple[Drawn, Verdict]:
    """Return the next sample, and what is in doubt by an answer."""
    drawn = sampling.draw(now_ns=NOW_NS)
    return drawn, sampling.compare(drawn, told, now_ns=NOW_NS, took_s=0.01)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"sample_topics": 0}, "sample_topics is 0"),
        ({"heartbeat_s": 0.0}, "heartbeat_s is 0"),
        (
            {"version": 4, "retain_policy": "keep"},
            'retain_policy = "keep" holds values that the primary does not retain',
        ),
        ({"version": 4}, ""),
        ({"selectors": (Selector("plant/#", live_only=True),)}, "every selector is live_only"),
        ({"max_age_s": 2.0}, "max_age_s lets heartbeats overtake values, so values of a sample cannot be compared"),
    ],
)
def test_the_configuration_may_exclude_samples(changes: dict[str, Any], why: str) -> None:
    """The status says why there are none."""
    config = make_config(**changes)
    assert why_never(config) == why
    sampling, _ = made(config)
    assert (sampling.totals.off, sampling.off_for_good) == (why, bool(why))


def test_topics_are_drawn_by_their_names_at_the_primary() -> None:
    """Of every selector that has retained values; not those about to expire."""
    selectors = (Selector("plant/#", prefix="east/"), Selector("dock/+"), Selector("live/#", live_only=True))
    sampling, _ = made(
        make_config(*selectors),
        value("east/plant/1"),
        value("east/plant/soon", expires_ns=NOW_NS + SECOND),
        value("east/plant/later", expires_ns=NOW_NS + 60 * SECOND),
        value("dock/1"),
        value("live/1"),
    )
    drawn = sampling.draw(now_ns=NOW_NS)
    assert dict(drawn.indexes) == {"plant/1": 0, "plant/later": 0, "dock/1": 1}
    assert {name: held[0] for name, held in drawn.held.items()} == {
        "plant/1": b"east/plant/1",
        "plant/later": b"east/plant/later",
        "dock/1": b"dock/1",
    }


def test_a_sample_is_bounded_however_many_selectors_there_are() -> None:
    """Those that do not fit have their turn in the next ones."""
    selectors = tuple(Selector(f"s{number}/#") for number in range(1200))
    updates = [value(f"s{number}/{topic}") for number in range(1200) for topic in range(3)]
    sampling, _ = made(make_config(*selectors, sample_topics=16), *updates)
    seen: set[int] = set()
    for _ in range(2):
        drawn = sampling.draw(now_ns=NOW_NS)
        assert len(drawn.held) <= NAMES_MAX
        seen |= set(drawn.indexes.values())
    assert seen == set(range(1200))


def test_a_refusal_without_a_reason_calls_for_one_audit() -> None:
    """Over MQTT 3.1.1 it may be a right that is gone, or a limit: an audit that finds all topics shows which."""
    sampling, _ = made(None, value("plant/1"), value("plant/2"))
    told = answer(row("plant/1"), refused={"plant/2": 0x80})
    drawn, doubtful = compared(sampling, told)
    assert doubtful.missing == {"plant/2"}
    sampling.take(sampling.confirm(drawn, doubtful))
    sampling.note_audit(AuditReport(False, checked=2))
    drawn, doubtful = compared(sampling, told)
    assert not doubtful
    assert sampling.unasked == {"plant/2": 0x80}
    sampling.take(doubtful)
    assert sampling.totals.off == ""
    drawn, doubtful = compared(sampling, answer(row("plant/1"), absent=frozenset({"plant/2"})))
    sampling.take(sampling.confirm(drawn, doubtful))
    sampling.note_audit(AuditReport(False, checked=2, removed=1))
    _, doubtful = compared(sampling, told)
    assert doubtful.missing == {"plant/2"}, "after a real difference a refusal counts again"


def test_the_audit_begins_with_the_first_selector_that_differs() -> None:
    """Not with the first of all."""
    config = make_config(Selector("a/#"), Selector("b/#"), Selector("c/#"))
    sampling, _ = made(config, value("a/1"), value("b/1"), value("c/1"))
    drawn, doubtful = compared(sampling, answer(row("a/1"), row("c/1", b"new"), absent=frozenset({"b/1"})))
    assert doubtful.first_index(drawn) == 1


def test_a_stamp_is_no_difference() -> None:
    """A fanout primary puts the same trailer on a copy that it put on the update."""
    sampling, context = made(None, value("plant/1"))
    context.pipeline.begin_connection(stamped=True)
    stamped = encode_stamp(Stamp("hub", 1, 7, 1))
    _, doubtful = compared(sampling, answer(row("plant/1", properties=stamped)))
    assert not doubtful
    _, doubtful = compared(sampling, answer(row("plant/1", properties=b"\x03\x00\x01t" + stamped)))
    assert doubtful.changed


def test_sampling_rests_longer_each_time_that_an_audit_repairs_nothing() -> None:
    """As where access rules depend on the Client Identifier; it says so, and an equal sample ends it."""
    sampling, _ = made(None, value("plant/1"))
    rests = []
    for _ in range(10):
        drawn, doubtful = compared(sampling, answer(absent=frozenset({"plant/1"})))
        sampling.take(sampling.confirm(drawn, doubtful))
        sampling.note_audit(AuditReport(False, checked=1))
        rests.append(sampling.pause_s)
    assert rests[:4] == [REST_MIN_S, 2 * REST_MIN_S, 4 * REST_MIN_S, 8 * REST_MIN_S]
    assert rests[-1] == REST_MAX_S
    assert "found them all; access rules of the primary may depend on the Client Identifier" in sampling.totals.off
    drawn, doubtful = compared(sampling, answer(row("plant/1")))
    sampling.take(doubtful)
    assert (sampling.pause_s, sampling.totals.off) == (make_config().heartbeat_s, "")


@pytest.mark.parametrize(
    "report", [AuditReport(False, changed=1), AuditReport(False, removed=1), AuditReport(False, kept=1)]
)
def test_the_rest_behind_an_audit_that_found_something_goes_by_its_cost(report: AuditReport) -> None:
    """So a second fault soon after the first is seen; topics that became unconfirmed were found too."""
    sampling, _ = made(None, value("plant/1"))
    for seconds, pause_s in ((0.0, make_config().heartbeat_s), (2.0, 2.0 * COST_FACTOR), (100.0, REST_MIN_S)):
        drawn, doubtful = compared(sampling, answer(absent=frozenset({"plant/1"})))
        sampling.take(sampling.confirm(drawn, doubtful))
        sampling.note_audit(replace(report, seconds=seconds))
        assert sampling.pause_s == pause_s


def test_topics_that_were_unconfirmed_before_are_not_found_again() -> None:
    """An audit that leaves as many unconfirmed as there were has found nothing."""
    sampling, context = made(None, value("plant/1"), value("plant/2"))
    context.replica.unconfirmed.note([b"plant/2"], selector_index=0)
    drawn, doubtful = compared(sampling, answer(absent=frozenset({"plant/1"})))
    sampling.take(sampling.confirm(drawn, doubtful))
    sampling.note_audit(AuditReport(False, checked=2, kept=1))
    assert sampling.pause_s == REST_MIN_S
    assert "found them all" in sampling.totals.off


def test_a_refused_user_calls_for_an_audit_only_where_it_was_taken_before() -> None:
    """And once; the first refusals show that the primary takes no second connection."""
    sampling, _ = made(None, value("plant/1"))
    assert [sampling.fail(PASSWORD), sampling.fail(PASSWORD)] == [False, False]
    assert sampling.totals.off == f"the primary could not be asked by name: {PASSWORD.message}"
    sampling.take(compared(sampling, answer(row("plant/1")))[1])
    assert sampling.fail(LinkLost("no answer")) is False
    sampling.take(compared(sampling, answer(row("plant/1")))[1])
    assert sampling.fail(PrimaryRefused("too many connections", reason_code=0x97)) is False
    sampling.take(compared(sampling, answer(row("plant/1")))[1])
    assert [sampling.fail(PASSWORD), sampling.fail(PASSWORD)] == [True, False]
    assert (sampling.totals.failed_total, sampling.totals.audits_total) == (6, 1)


def test_failures_make_the_pause_longer() -> None:
    """Up to five minutes."""
    sampling, _ = made(None, value("plant/1"))
    pauses = []
    for _ in range(12):
        sampling.fail(LinkLost("no answer"))
        pauses.append(sampling.pause_s)
    heartbeat_s = make_config().heartbeat_s
    assert pauses[:2] == [2 * heartbeat_s, 4 * heartbeat_s]
    assert pauses[-1] == 300.0
