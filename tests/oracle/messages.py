"""Messages that a client may legally send, made to be taken for something else.

Every one comes from one `random.Random`, so that a seed repeats a run. Their properties, payloads and topics are made
from what a node looks for itself: names and encoded bytes of its own User Properties, identifiers of properties, and
lengths that fit them; and from what decoders stumble over.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.oracle.encoding import encode_publish, sized
from tests.oracle.packets import Properties, Value, is_valid_topic

__all__ = ["Sample", "binary", "make_properties", "make_sample", "text"]

STAMP = b"\x26" + sized(b"fanout-stamp") + sized(b"zz:5:6:7")
COPY = b"\x26" + sized(b"fanout-copy") + sized(b"1")
_PIECES = (
    STAMP,
    COPY,
    STAMP + COPY,
    COPY + STAMP,
    STAMP[:15],
    STAMP[:15] + b"\x00\x00",
    STAMP[:15] + b"\x00\x05;copy",
    STAMP[:-1],
    STAMP[1:],
    COPY[:-1],
    COPY[1:],
    b"\x23\x00\x01",
    b"\x0b\x05",
    b"\x02\x00\x00\x00\x01",
    b"\x01\x01",
    b"\x26\x00\x01a\x00\x01b",
    b"\x09\x00\x02",
    b"\x03\x00\x00",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b'{"filter": "#", "count": 0, "digest": "0"}',
    b"\x30\x03\x00\x01t",
    b"\xe0\x00",
)
_TEXTS = (
    "fanout-stamp",
    "fanout-copy",
    "fanout-stamps",
    "fanout-node",
    "fanout-manifest",
    "fanout-count",
    "fanout-",
    "zz:5:6:7",
    "zz:5:6:7;copy",
    ";copy",
    "root:5:6:7",
    "1",
    "",
    "&",
    "x&",
    "&\x01\x0cfanout-stamp\x01\x08zz:5:6:7",
    "#\x01\x01",
    "\x0b\x05",
    "\t\x01",
    "\x01\x01",
    "ä€𝄞",
    "\ufeff",
    "\x7f\x1b[2J\r\n",
    "\u202e",
    "\U0010ffff",
    "a" * 127,
    "b" * 128,
    "$SYS/fanout/manifest",
    "application/json",
)
_OWN_PAIRS = (
    (b"fanout-copy", b"1"),
    (b"fanout-stamp", b"zz:5:6:7"),
    (b"fanout-stamp", b"root:5:6:7"),
    (b"fanout-stamp", b"zz:5:6:7;copy"),
    (b"fanout-stamp", b";copy"),
    (b"fanout-stamp", b""),
    (b"fanout-stamp", b"zz:5:6:999999999999999999"),
)
_TOPIC_BREAKING = str.maketrans("", "", "+#")


@dataclass(slots=True)
class Sample:
    """One message as it is published.

    Attributes:
        number: What it is known by.
        is_refused: Whether a node refuses it: it is not what its Payload Format Indicator says.
        published_s: When it was handed to the socket, monotonic seconds.
    """

    number: int
    topic: bytes
    payload: bytes
    properties: Properties
    qos: int
    retain: bool
    is_refused: bool = False
    published_s: float = 0.0

    def size(self) -> int:
        """Return the bytes of its PUBLISH at QoS 1, over MQTT 5."""
        return len(encode_publish(self.topic, self.payload, version=5, qos=1, packet_id=1, properties=self.properties))


def text(rng: random.Random) -> bytes:
    """Make a UTF-8 Encoded String."""
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(_TEXTS).encode()
    if kind < 0.9:
        return "".join(rng.choices(_TEXTS, k=2)).encode()
    return "".join(chr(rng.choice((rng.randint(1, 0x7F), rng.randint(0x80, 0xD7FF)))) for _ in range(5)).encode()


def binary(rng: random.Random) -> bytes:
    """Make binary data."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(_PIECES)
    if kind < 0.8:
        return b"".join(rng.choices(_PIECES, k=rng.randint(2, 4)))
    if kind < 0.9:
        return rng.randbytes(rng.randrange(8)) + rng.choice(_PIECES) + rng.randbytes(rng.randrange(8))
    return rng.randbytes(rng.randrange(300))


def topic_part(rng: random.Random) -> bytes:
    """Make the end of a Topic Name."""
    return text(rng).decode().translate(_TOPIC_BREAKING).encode()


def make_properties(rng: random.Random) -> Properties:
    """Make properties that a client may put on a PUBLISH, in any order; without a Topic Alias."""
    if rng.random() < 0.1:
        return ()
    found: list[tuple[int, Value]] = []
    if rng.random() < 0.3:
        found.append((0x01, rng.randrange(2)))
    if rng.random() < 0.3:
        found.append((0x02, rng.choice((3_600, 100_000, 0x26000C, 0xFFFF_FFFF))))
    if rng.random() < 0.3:
        found.append((0x03, text(rng)))
    if rng.random() < 0.3:
        response_topic = topic_part(rng)
        if is_valid_topic(response_topic):
            found.append((0x08, response_topic))
    if rng.random() < 0.5:
        found.append((0x09, binary(rng)))
    found += [(0x26, (text(rng), text(rng))) for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 6)))]
    if rng.random() < 0.7:
        rng.shuffle(found)
    if rng.random() < 0.02:
        found = [*(one for one in found if one[0] not in {0x03, 0x09}), *_swallowing(rng)]
    found += [(0x26, pair) for pair in _OWN_PAIRS if rng.random() < 0.03]
    return tuple(found)


def _swallowing(rng: random.Random) -> list[tuple[int, Value]]:
    """Make Correlation Data that is a mark, and what becomes an identifier of the hop where the mark is cut out."""
    mark = rng.choice((STAMP, COPY))
    smuggled = rng.choice((b"\x0b\x07", b"\x23\x01\x01"))
    name = b"n" * (len(mark) - 3) + smuggled + b"&"
    return [(0x09, mark), (0x26, (name, b"v")), (0x03, b"t" * 770)]


def make_sample(
    rng: random.Random, number: int, *, root: bytes, publisher: bytes, version: int, qos_max: int
) -> Sample:
    """Make one message.

    Args:
        rng: Decides.
        number: What it is known by: in the topic of an event, in front of the payload of a retained value.
        root: The first level of its topic.
        publisher: The third level of topics of retained values, which one publisher has for itself.
        version: 4 for no properties.
        qos_max: Highest QoS.
    """
    properties = make_properties(rng) if version == 5 else ()
    retain = rng.random() < 0.4
    if retain:
        place = rng.randrange(RETAINED_TOPICS)
        topic = b"%s/r/%s/%d/%s" % (root, publisher, place, topic_part(random.Random(place)))
        payload = b"" if rng.random() < 0.05 else b"%d|" % number + binary(rng)
    else:
        topic = b"%s/e/%d/%s" % (root, number, topic_part(rng))
        payload = rng.choice((b"", binary(rng), binary(rng)))
    if (0x01, 1) in properties and rng.random() < 0.9:
        payload = payload.decode(errors="replace").encode()
    is_refused = (0x01, 1) in properties and payload.decode(errors="replace").encode() != payload
    return Sample(number, topic, payload, properties, rng.randint(0, qos_max), retain, is_refused)


RETAINED_TOPICS = 100
"""Topics of retained values for each publisher."""
