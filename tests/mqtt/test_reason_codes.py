"""MQTT 5, section 2.4, and MQTT 3.1.1, section 3.2.2.3: the codes and their names."""

from __future__ import annotations

import pytest

from fanout.mqtt.reason_codes import ReasonCode, connect_return_code


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0x00, "Success"),
        (0x01, "Granted QoS 1"),
        (0x9B, "QoS not supported"),
        (0x81, "Malformed packet"),
        (0x9E, "Shared subscriptions not supported"),
    ],
)
def test_text(code: int, text: str) -> None:
    """A code reads as the specification names it."""
    assert ReasonCode(code).text == text


def test_failures_start_at_0x80() -> None:
    """A Reason Code of 0x80 or above means failure (section 2.4)."""
    assert all(code.is_failure == (code >= 0x80) for code in ReasonCode)
    assert ReasonCode.UNSPECIFIED_ERROR.is_failure
    assert not ReasonCode.RE_AUTHENTICATE.is_failure


def test_connect_return_codes() -> None:
    """Every return code of MQTT 3.1.1 but the reserved ones has a reason; other reasons have none."""
    codes = {connect_return_code(reason_code) for reason_code in ReasonCode}
    assert codes == {None, 0, 1, 2, 3, 4, 5}
    assert connect_return_code(ReasonCode.SUCCESS) == 0
    assert connect_return_code(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION) == 1
    assert connect_return_code(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID) == 2
    assert connect_return_code(ReasonCode.MALFORMED_PACKET) is None
