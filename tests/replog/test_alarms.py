"""Faults that last."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from fanout.replog.alarms import Alarms


def test_an_alarm_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    """However often a step fails, two lines are logged; the text is that of the last failure."""
    with capture_logs() as lines:
        alarms = Alarms(structlog.get_logger())
        alarms.end("write")
        assert alarms.text == ""
        alarms.begin("write", "disk full")
        alarms.begin("write", "disk still full")
        alarms.begin("seal", "cannot seal")
        assert alarms.text == "disk still full; cannot seal"
        alarms.end("write")
        alarms.end("write")
        assert alarms.text == "cannot seal"
        alarms.end("seal")
    assert alarms.text == ""
    assert [(line["log_level"], line["step"]) for line in lines] == [
        ("error", "write"),
        ("error", "seal"),
        ("info", "write"),
        ("info", "seal"),
    ]
