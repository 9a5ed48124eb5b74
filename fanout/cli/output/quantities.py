"""Numbers for people; an unknown one is a dash, never zero."""

from __future__ import annotations

__all__ = ["UNKNOWN", "as_bytes", "as_count", "as_duration", "as_topics", "counted"]

UNKNOWN = "-"


def as_count(count: float | None) -> str:
    """Return a count with separated thousands: `200,000`."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def as_topics(count: int, *, maybe_unreadable: bool) -> str:
    """Return the number of topics of a selector; of an empty one, also what else it may mean."""
    return f"{as_count(count)} (empty or not readable)" if maybe_unreadable else as_count(count)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 row`, `2,000 rows`."""
    return f"{as_count(count)} {noun}{'' if count == 1 else 's'}"


def as_bytes(count: int) -> str:
    """Return a number of bytes in the largest binary unit that keeps three digits: `22.4 MiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            break
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def as_duration(seconds: float | None) -> str:
    """Return a time span in its two largest units: `4.1 ms`, `12.0 s`, `3 h 12 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, smaller_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    return f"{whole // 60} min {whole % 60} s"
