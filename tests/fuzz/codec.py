"""What must hold for any bytes that are fed to the decoders.

- Nothing is raised but `ProtocolError`, and that is kept as `Decoder.fault`; for a client only a fixed header is one.
- However the bytes are cut into reads, the same packets come out, and the same fault.
- What is held back is never more than the largest packet allowed, nor than what came.
- A message that was decoded is legal by a reader that is not ours. A packet that was decoded without a breach can be
  encoded, and decodes to itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fanout.mqtt.decoder import AckRun, Decoder, Item, PublishRow, PublishRun
from fanout.mqtt.packet_types import Role
from fanout.mqtt.packets import Ack, Connect, encode
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import SkippedPublish, ToleratedBreach
from fanout.server.accept.proxy_header import ProxyHeader, ProxyHeaderInvalid
from tests.fuzz.mutation import connects, cuts, from_client, from_server, mutate
from tests.oracle.packets import decode_packets

__all__ = ["Target", "check_proxy_header", "check_stream", "targets"]

PACKET_BYTES_MAX = 1 << 16
TOPIC_ALIAS_MAX = 4
_HEADER_BYTES = 16
"""What is held of a packet that is too large, beside its topic."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decoder made of a stream."""

    packets: list[object]
    """One entry for each packet, however they came in runs."""
    fault: int | None
    """The Reason Code."""
    version: int | None


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder, and packets from which its inputs are made."""

    name: str
    role: Role
    version: int | None
    """None: a server's decoder that waits for CONNECT."""
    seeds: Sequence[bytes]

    def input(self, rng: random.Random) -> bytes:
        """Make one input: mostly packets with faults, at times just bytes."""
        if rng.random() < 0.05:
            return rng.randbytes(rng.randrange(64))
        return mutate(self.seeds, rng)

    def check(self, data: bytes, rng: random.Random) -> None:
        """Check one input, as one read and in pieces."""
        check_stream(data, cuts(data, rng), role=self.role, version=self.version)


def targets() -> list[Target]:
    """Return every decoder that the bytes of a peer reach."""
    return [
        Target("CONNECT", "server", None, [*connects(4), *connects(5)]),
        Target("client, MQTT 3.1.1", "server", 4, from_client(4)),
        Target("client, MQTT 5", "server", 5, from_client(5)),
        Target("primary, MQTT 3.1.1", "client", 4, from_server(4)),
        Target("primary, MQTT 5", "client", 5, from_server(5)),
    ]


def check_stream(data: bytes, pieces: Iterable[bytes], *, role: Role, version: int | None) -> None:
    """Check one stream of bytes; see the module.

    Raises:
        AssertionError: Something does not hold.
    """
    whole = _decode([data], role=role, version=version)
    assert _decode(pieces, role=role, version=version) == whole, "another outcome when cut otherwise"
    if role == "client":
        assert whole.fault in (None, ReasonCode.MALFORMED_PACKET)
    breaches = any(isinstance(packet, ToleratedBreach | SkippedPublish) for packet in whole.packets)
    for packet in whole.packets:
        if isinstance(packet, tuple) or not breaches:
            _check_encoding(packet, role=role, version=whole.version)


def check_proxy_header(data: bytes, sizes: Callable[[int], int]) -> None:
    """Feed a reader of the PROXY protocol, as much as `sizes` says of what is wanted, until it is done.

    Raises:
        AssertionError: It wants more than a header can have.
    """
    header, pos = ProxyHeader(), 0
    try:
        while pos < len(data) and (wanted := header.wanted):
            assert wanted <= 5000, "more than the longest header"
            piece = data[pos : pos + max(1, min(wanted, sizes(wanted)))]
            pos += len(piece)
            if header.feed(piece):
                assert header.wanted == 0
    except ProxyHeaderInvalid:
        return


def _decode(pieces: Iterable[bytes], *, role: Role, version: int | None) -> Outcome:
    decoder = Decoder(version=version, packet_bytes_max=PACKET_BYTES_MAX, topic_alias_max=TOPIC_ALIAS_MAX, role=role)
    packets: list[object] = []
    fed = 0
    for piece in pieces:
        fed += len(piece)
        packets += _flat(decoder.feed(piece))
        assert decoder.buffered_bytes <= min(fed, PACKET_BYTES_MAX + _HEADER_BYTES + len(piece)), "too much is held"
        if decoder.fault is not None:
            return Outcome(packets, decoder.fault.reason_code, decoder.version)
    return Outcome(packets, None, decoder.version)


def _flat(items: list[Item]) -> Iterable[object]:
    for item in items:
        match item:
            case PublishRun(rows):
                yield from rows
            case AckRun(kind, packet_ids, codes):
                assert packet_ids, "an empty run"
                for index, packet_id in enumerate(packet_ids):
                    yield Ack(kind, packet_id, codes[index] if codes is not None else 0)
            case _:
                yield item


def _check_encoding(packet: object, *, role: Role, version: int | None) -> None:
    assert version is not None
    if isinstance(packet, tuple):
        row: PublishRow = packet
        topic, payload, flags, packet_id, properties, expiry_s, _ = row
        data = encode_publish(
            topic,
            payload,
            version=version,
            qos=flags >> 1 & 3,
            retain=bool(flags & 1),
            dup=bool(flags & 8),
            packet_id=packet_id,
            properties=properties,
            expiry_s=expiry_s,
        )
        if role == "client":  # without its payload, whose format is the publisher's business
            decode_packets(
                encode_publish(
                    topic, b"", version=version, qos=flags >> 1 & 3, packet_id=packet_id, properties=properties
                ),
                version=version,
                sender="server",
            )
    else:
        data = encode(packet, version=version)  # type: ignore[arg-type]  # the decoder gave it
    again = _decode([data], role=role, version=None if isinstance(packet, Connect) else version)
    assert again.packets == [packet], f"{packet} became {again}"
