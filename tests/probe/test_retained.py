"""Checks of retained messages that need no primary."""

from __future__ import annotations

import pytest
from paho.mqtt.client import MQTTMessage

from fanout.probe import retained
from fanout.probe.ground import Ground


async def test_the_count_that_a_primary_tells_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may send anything as its count; a cell of the table is not longer than a line."""
    told = MQTTMessage()
    told.payload = b"9" * 1_000_000

    async def read(*_: object, **__: object) -> MQTTMessage:
        return told

    monkeypatch.setattr(retained, "_read", read)
    result = await retained.check_retained_count(object.__new__(Ground))
    assert result.seen == f"$SYS says {'9' * 80}"
