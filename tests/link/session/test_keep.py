"""`retain_policy = "keep"`: every live message counts as retained, and audits tell which are not."""

from __future__ import annotations

import pytest

from fanout.link.model.events import AuditEnded, TopicsMissing
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

VALUES = {b"plant/%d" % number: b"%d" % number for number in range(20)}


def live(*selectors: Selector, **changes: object) -> Pair:
    """Return a link that is live over MQTT 3.1.1 without the bridge bit."""
    primary = FakePrimary(version=4, retained=dict(VALUES))
    for name, value in changes.items():
        setattr(primary, name, value)
    pair = Pair(make_config(*selectors, version=4, retain_policy="keep", snapshot_quiet_s=1.0), primary)
    pair.connect()
    pair.wait(10)
    pair.events.clear()
    return pair


def audit(pair: Pair) -> AuditEnded:
    """Audit the link, and return how it ended."""
    pair.audit()
    pair.wait(20)
    return pair.of(AuditEnded)[0]


@pytest.mark.parametrize("order", ["answers", "silence"])
@pytest.mark.parametrize("prefix", ["", "site/"])
def test_topics_that_were_never_retained_are_removed_by_an_audit(prefix: str, order: str) -> None:
    """A hundred messages without RETAIN: no topic is unconfirmed because of them; a value that is updated stays."""
    pair = live(Selector("#", prefix=prefix), **({} if order == "answers" else {"asynchronous": True}))
    for number in range(100):
        pair.primary.publish(b"event/%d" % number, b"x", retain=False)
    pair.primary.publish(b"plant/1", b"new")
    pair.pump()
    assert len(pair.replica) == len(VALUES) + 100
    ended = audit(pair)
    assert (ended.report.removed, ended.report.kept) == (100, 0)
    local = {prefix.encode() + topic for topic in VALUES}
    assert set(pair.replica.view) == local
    assert not pair.replica.unconfirmed
    assert not pair.of(TopicsMissing)


def test_topics_that_were_retained_are_kept_as_unconfirmed() -> None:
    """A copy has shown that the primary had them; so has an audit, of one that was created since."""
    pair = live()
    pair.primary.publish(b"plant/new", b"x")
    pair.pump()
    assert audit(pair).report.kept == 0
    pair.primary.hidden = {b"plant/new", b"plant/3"}
    pair.events.clear()
    assert audit(pair).report.kept == 2
    assert len(pair.replica.unconfirmed) == 2
