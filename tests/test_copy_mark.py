"""The mark of a value that a node below has already."""

from __future__ import annotations

from fanout.copy_mark import has_marked, is_marked, mark, unmark
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Stamp
from fanout.stamp import encode_stamp, split_stamp
from tests.server.node_in_memory import update

UNIT = b"\x26\x00\x04unit\x00\x01K"
STAMP = Stamp("hub", 1, 2, 3)


def row(properties: bytes) -> PublishRow:
    """Return a PUBLISH with properties."""
    return (b"plant/1", b"x", 1, 0, properties, None)


def test_mark_is_a_user_property_that_comes_off_again() -> None:
    """Any MQTT 5 tool can show it; what stands around it stays, the stamp behind it too."""
    marked = mark(update(b"plant/1", b"x", properties=UNIT))[4]
    assert marked == UNIT + b"\x26\x00\x0bfanout-copy\x00\x011"
    sent = row(marked + encode_stamp(STAMP))
    assert is_marked(sent)
    assert has_marked([row(b""), sent])
    assert split_stamp(unmark(sent)[4]) == (UNIT, STAMP)
    assert unmark(sent)[:4] == sent[:4]


def test_others_have_no_mark() -> None:
    """Neither without properties, nor with others."""
    others = [row(b""), row(UNIT), row(encode_stamp(STAMP))]
    assert not has_marked(others)
    assert not any(map(is_marked, others))
