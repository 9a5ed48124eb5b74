"""MQTT 5, sections 2.1.2 and 2.1.3: packet types, reserved flags and directions."""

from __future__ import annotations

import pytest

from fanout.mqtt.packet_types import ACK_TYPES, FIXED_HEADER_FLAGS, RECEIVABLE, PacketType, Role

C = PacketType


def test_types_have_the_numbers_of_the_specification() -> None:
    """The fifteen types are in the order of table 2-1."""
    names = (
        "CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK "
        "PINGREQ PINGRESP DISCONNECT AUTH"
    )
    assert [packet_type.name for packet_type in PacketType] == names.split()
    assert [packet_type.value for packet_type in PacketType] == list(range(1, 16))


def test_reserved_flags() -> None:
    """PUBREL, SUBSCRIBE and UNSUBSCRIBE have 0b0010, all others but PUBLISH 0b0000 (table 2-2)."""
    assert {kind for kind, flags in FIXED_HEADER_FLAGS.items() if flags == 2} == {
        C.PUBREL,
        C.SUBSCRIBE,
        C.UNSUBSCRIBE,
    }
    assert set(FIXED_HEADER_FLAGS) == set(PacketType) - {C.PUBLISH}
    assert set(FIXED_HEADER_FLAGS.values()) == {0, 2}


def test_acknowledging_types() -> None:
    """Four types acknowledge a PUBLISH."""
    assert {C.PUBACK, C.PUBREC, C.PUBREL, C.PUBCOMP} == ACK_TYPES


@pytest.mark.parametrize(
    ("role", "version", "only"),
    [
        ("server", 4, {C.CONNECT, C.SUBSCRIBE, C.UNSUBSCRIBE, C.PINGREQ, C.DISCONNECT}),
        ("server", 5, {C.CONNECT, C.SUBSCRIBE, C.UNSUBSCRIBE, C.PINGREQ, C.DISCONNECT, C.AUTH}),
        ("client", 4, {C.CONNACK, C.SUBACK, C.UNSUBACK, C.PINGRESP}),
        ("client", 5, {C.CONNACK, C.SUBACK, C.UNSUBACK, C.PINGRESP, C.DISCONNECT, C.AUTH}),
    ],
)
def test_direction_of_flow(role: Role, version: int, only: set[PacketType]) -> None:
    """Besides PUBLISH and its acknowledgements a role receives what table 2-1 of its version says."""
    assert RECEIVABLE[role, version] == {C.PUBLISH, *ACK_TYPES} | only
