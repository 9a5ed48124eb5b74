"""What a selector takes: kinds of content, RETAIN, size."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.link.ingest.content_filter import REASONS, ContentFilter, kinds_of
from fanout.link.model.states import LinkState
from fanout.mqtt.packets import PacketType
from fanout.mqtt.properties import Properties, encode_properties
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import ContentKind, Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.support.updates import NOW_NS, update

JSON = {"json", "text"}
TEXT = {"text"}
BINARY = {"binary"}


def properties(**values: Any) -> bytes:
    """Return encoded properties of a PUBLISH, without their length."""
    return encode_properties(Properties(**values), packet=PacketType.PUBLISH)[1:]


@pytest.mark.parametrize(
    ("payload", "told", "kinds"),
    [
        (b'{"a": 1}', {}, JSON),
        (b"21.5", {}, JSON),
        (b"21.5 C", {}, TEXT),
        ("grün".encode(), {}, TEXT),
        (b"\xff\x00", {}, BINARY),
        (b"NaN", {}, TEXT),
        (b'{"a": [-Infinity]}', {}, TEXT),
        (b"[" * 100_000, {}, TEXT),  # deeper than any parser goes
        (b"no json", {"content_type": "application/json"}, JSON),
        (b"\xff", {"content_type": "Application/Problem+JSON; charset=utf-8"}, JSON),
        (b'{"a": 1}', {"content_type": "text/plain"}, TEXT),
        (b'{"a": 1}', {"content_type": "application/octet-stream"}, BINARY),
        (b"x", {"content_type": "image/svg+xml"}, BINARY),
        (b"21", {"content_type": "our own name for it"}, JSON),
        (b"\xff", {"content_type": ""}, BINARY),
        (b"21", {"payload_format_indicator": 1}, JSON),
        (b"one", {"payload_format_indicator": 1}, TEXT),
        (b"\xff", {"payload_format_indicator": 0}, BINARY),
        (b"x", {"payload_format_indicator": 1, "content_type": "image/png"}, BINARY),
        (b"x", {"user_property": (("a", "b"),), "response_topic": "t"}, TEXT),
    ],
)
def test_what_a_payload_is(payload: bytes, told: dict[str, Any], kinds: set[ContentKind]) -> None:
    """By Content Type, else by Payload Format Indicator, else by the payload itself."""
    assert kinds_of(payload, properties(**told)) == kinds


def joined(*selectors: Selector) -> tuple[ContentFilter, Replica]:
    """Return a filter and its replica."""
    replica = Replica(selectors=selectors)
    return ContentFilter(selectors, replica=replica, copies_come=True), replica


@pytest.mark.parametrize(
    ("settings", "phase", "update", "fits", "reason"),
    [
        ({"content": ("json",)}, Phase.LIVE, update(b"t", b"{}"), True, ""),
        ({"content": ("json",)}, Phase.LIVE, update(b"t", b"a b"), False, "content"),
        ({"content": ("binary", "json")}, Phase.LIVE, update(b"t", b"\xff"), True, ""),
        ({"content": ("json",)}, Phase.LIVE, update(b"t", b""), True, ""),
        ({"retained_only": True}, Phase.LIVE, update(b"t", b"x"), True, ""),
        ({"retained_only": True}, Phase.LIVE, update(b"t", b"x", retain=False), False, "not_retained"),
        ({"live_only": True}, Phase.SNAPSHOT, update(b"t", b"x"), False, "retained"),
        ({"live_only": True}, Phase.AUDIT, update(b"t", b"x"), False, "retained"),
        ({"live_only": True}, Phase.SNAPSHOT, update(b"t", b"x", retain=False), True, ""),
        ({"max_payload": 3}, Phase.LIVE, update(b"t", b"123"), True, ""),
        ({"max_payload": 3}, Phase.LIVE, update(b"t", b"1234"), False, "payload_too_large"),
        ({"max_payload": 3}, Phase.LIVE, update(b"t", b""), True, ""),
    ],
)
def test_what_fits_passes_and_the_rest_is_counted(
    settings: dict[str, Any], phase: Phase, update: Update, fits: bool, reason: str
) -> None:
    """An update that fits is not touched; one that does not is gone, with its reason."""
    content, _ = joined(Selector("#", **settings))
    assert content.admit([update], phase=phase) == ([update] if fits else [])
    assert content.rejected == [{} if fits else {reason: 1}]
    assert not reason or reason in REASONS


@pytest.mark.parametrize("together", [True, False])
def test_value_that_does_not_fit_takes_away_the_one_before(together: bool) -> None:
    """In one batch with it or later; a topic without a value gets no removal."""
    content, replica = joined(Selector("#", max_payload=3, prefix="site/"))
    before, after = update(b"site/t", b"old"), update(b"site/t", b"too large")
    for batch in ([before, after],) if together else ([before], [after]):
        changes = replica.apply(content.admit(batch, phase=Phase.LIVE), phase=Phase.LIVE)
    (removal,) = [update for update in changes.dispatch if not update[1]]
    assert removal == (b"site/t", b"", 1, True, b"", NOW_NS, 0, content_digest(b"t", b""), None)
    assert len(replica) == 0
    assert content.admit([after, update(b"site/t", b"not even retained", retain=False)], phase=Phase.LIVE) == []
    assert content.rejected == [{"payload_too_large": 3}]


def test_each_selector_has_its_own_rules() -> None:
    """By the local names of topics, those that are held and those that are new."""
    content, replica = joined(Selector("a/#", max_payload=1), Selector("b/#", prefix="site/"), Selector("c/#"))
    batch = [update(b"a/1", b"12"), update(b"site/b/1", b"12"), update(b"c/1", b"12")]
    for _ in range(2):
        admitted = content.admit(batch, phase=Phase.LIVE)
        assert admitted == batch[1:]
        replica.apply(admitted, phase=Phase.LIVE)
    assert content.rejected == [{"payload_too_large": 2}, {}, {}]


def test_link_is_complete_with_what_fits() -> None:
    """A snapshot with values that do not fit is proved; they are acknowledged and not held, live ones neither."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"%d" % number for number in range(20)})
    pair = Pair(make_config(Selector("plant/#", max_payload=1)), primary)
    pair.go_live()
    assert sorted(pair.values()) == [b"plant/%d" % number for number in range(10)]
    pair.primary.publish(b"plant/1", b"large", qos=1)
    pair.pump()
    assert b"plant/1" not in pair.values()
    assert pair.session.pipeline.content is not None
    assert pair.session.pipeline.content.rejected == [{"payload_too_large": 11}]
    pair.lose()
    pair.connect()
    assert pair.is_in(LinkState.LIVE), "what is left out is no loss"
