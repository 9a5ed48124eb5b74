"""Alarms of a link in the replication log."""

from __future__ import annotations

import json
from typing import Any

import structlog
from structlog.testing import capture_logs

from fanout.node.replication_log import alarm_logger


def test_warnings_and_errors_are_recorded_and_every_line_is_written() -> None:
    """The level, the message and the fields, those that were bound too."""
    details: list[str] = []
    with capture_logs() as lines:
        inner = structlog.get_logger().bind(node="edge-1")
        logger = alarm_logger(inner, record=details.append).bind(link="plant")
        logger.info("link state", state="live")
        logger.warning("audit ended", changed=3, why=ValueError("x"))
        logger.error("a limit keeps retained values out", limit="topics_max")
    assert [(line["log_level"], line["event"], line["link"], line["node"]) for line in lines] == [
        ("info", "link state", "plant", "edge-1"),
        ("warning", "audit ended", "plant", "edge-1"),
        ("error", "a limit keeps retained values out", "plant", "edge-1"),
    ]
    recorded: list[dict[str, Any]] = [json.loads(detail) for detail in details]
    assert recorded == [
        {"level": "warning", "message": "audit ended", "link": "plant", "changed": 3, "why": "x"},
        {
            "level": "error",
            "message": "a limit keeps retained values out",
            "link": "plant",
            "limit": "topics_max",
        },
    ]


def test_alarms_that_repeat_are_thinned_out() -> None:
    """As lines of the log are: a primary cannot fill the disk with them."""
    details: list[str] = []
    with capture_logs() as lines:
        logger = alarm_logger(structlog.get_logger(), record=details.append)
        for number in range(100):
            logger.warning("link is down", link="plant", error=f"reason {number}")
    assert (len(lines), len(details)) == (100, 5)
