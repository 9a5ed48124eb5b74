"""Alarms in the logs of links: warnings and errors, and messages that were skipped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fanout.reports.read.details import parse_alarm_detail
from fanout.reports.read.scope import AskedWindow
from fanout.reports.read.survey import AlarmSummary
from fanout.reports.values.document import Alarm
from fanout.reports.values.figures import time_of

__all__ = ["list_alarms"]


def list_alarms(alarms: Iterable[AlarmSummary], *, window: AskedWindow, limit: int) -> tuple[Alarm, ...]:
    """Return the alarms of the window that was asked for, of each link and message once, the latest first."""
    found = defaultdict[tuple[str, str, str, str], list[AlarmSummary]](list)
    for one in alarms:
        if one.last_us >= window.since_us and one.first_us < window.until_us:
            found[one.node, one.link, one.event, parse_alarm_detail(one.detail)[0]].append(one)
    listed: list[Alarm] = []
    for (node, link, event, message), parts in found.items():
        newest = max(parts, key=lambda part: part.last_us)
        _, reason, hint = parse_alarm_detail(newest.detail)
        listed.append(
            Alarm.of(
                {"node": node, "link": link, "kind": event, "message": message, "reason": reason, "hint": hint},
                times=sum(part.times for part in parts),
                first=time_of(min(part.first_us for part in parts)),
                last=time_of(newest.last_us),
            )
        )
    listed.sort(key=lambda one: (-one.last.timestamp(), one.node, one.link, one.message))
    return tuple(listed[:limit])
