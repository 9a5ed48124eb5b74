"""Times on the command line: ISO 8601, or an age.

A time without a zone is UTC, like all times of a report.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

__all__ = ["parse_time"]

_AGE: Final = re.compile(r"(\d+)(s|m|h|d|w)", re.ASCII)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DAYS_AGO: Final = {"today": 0, "yesterday": 1}


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """Parse a time of an option, in UTC.

    Args:
        text: ISO 8601 with or without a zone (UTC), also a date alone; a number with s, m, h, d or w for an age; or
            `today` or `yesterday`, at 00:00 UTC.
        now: Time from which an age counts back; None means the present second.

    Raises:
        typer.BadParameter: It is none of these.
    """
    now = datetime.now(UTC).replace(microsecond=0) if now is None else now
    try:
        if text in _DAYS_AGO:
            return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS_AGO[text])
        if age := _AGE.fullmatch(text):
            return now - timedelta(seconds=int(age[1]) * _UNITS_S[age[2]])
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a time; give one like 2026-02-02T14:00 (UTC), 2026-02-02T14:00+01:00, yesterday, or an "
            f"age like 2h, 30m or 1d"
        ) from error
