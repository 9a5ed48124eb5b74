"""A short run of the codec's fuzzing: hypothesis for what it shrinks well, seeded mutations for what they reach."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.mqtt.packet_types import Role
from fanout.mqtt.packets import encode
from tests.fuzz.codec import Target, check_proxy_header, check_stream, targets
from tests.fuzz.mutation import cuts, spoil
from tests.mqtt.strategies import packets_from_client, packets_from_server
from tests.support.examples import examples

INPUTS = examples(3_000)
SEED = 20_240_607

sides = st.sampled_from([("server", None), ("server", 4), ("server", 5), ("client", 4), ("client", 5)])


@settings(max_examples=300, deadline=None)
@given(sides, st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_bytes(side: tuple[Role, int | None], data: bytes, rng: random.Random) -> None:
    """Whatever a peer sends, the decoder ends in packets or a ProtocolError, however the bytes are cut."""
    role, version = side
    check_stream(data, cuts(data, rng), role=role, version=version)


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.sampled_from([4, 5]), st.sampled_from(["server", "client"]), st.randoms(use_true_random=False))
def test_spoilt_packets(data: st.DataObject, version: int, role: Role, rng: random.Random) -> None:
    """Any valid packets, one of them with faults."""
    packets = packets_from_client(version) if role == "server" else packets_from_server(version)
    stream = [encode(packet, version=version) for packet in data.draw(st.lists(packets, min_size=1, max_size=4))]
    index = rng.randrange(len(stream))
    stream[index] = spoil(stream[index], rng, stream)
    joined = b"".join(stream)
    check_stream(joined, cuts(joined, rng), role=role, version=version)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_mutations(target: Target) -> None:
    """A thousand mutated streams for every decoder."""
    rng = random.Random(SEED)
    for _ in range(INPUTS):
        data = target.input(rng)
        try:
            target.check(data, rng)
        except Exception as error:
            raise AssertionError(f"on {data!r}") from error


@settings(max_examples=400, deadline=None)
@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"]),
    st.randoms(use_true_random=False),
)
def test_proxy_header(data: bytes, start: bytes, rng: random.Random) -> None:
    """Whatever comes as a header of the PROXY protocol is read or refused."""
    check_proxy_header(start + data, lambda wanted: rng.randint(1, wanted))
    check_proxy_header(start + data + b"\r\n", lambda wanted: wanted)
