"""What several test modules of the access package need: a clock, a logger, cheap hashes, topics and filters."""

from __future__ import annotations

import functools
import itertools
from typing import Any, cast

from argon2 import PasswordHasher
from hypothesis import strategies as st
from structlog.testing import CapturingLogger
from structlog.typing import FilteringBoundLogger

from fanout.access.identity import Credentials

__all__ = [
    "TOPICS",
    "ManualClock",
    "as_logger",
    "cheap_hash",
    "credentials",
    "filters",
    "obviously_matched",
    "obviously_matches",
    "seen",
]

_CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

# Every topic over levels that filters name and two that none names, up to a depth beyond which no filter of the
# tests can tell topics apart.
NAMED = ("", "a", "b", "$d")
TOPICS = [
    name
    for depth in range(1, 5)
    for name in map("/".join, itertools.product((*NAMED, "n", "$n"), repeat=depth))
    if name
]


class ManualClock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def as_logger(logger: CapturingLogger) -> FilteringBoundLogger:
    """Return a logger that remembers its calls, as the type that the code asks for."""
    return cast("FilteringBoundLogger", logger)


def seen(logger: CapturingLogger) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the lines that were logged: level, event, fields."""
    return [(call.method_name, call.args[0], call.kwargs) for call in logger.calls]


@functools.cache
def cheap_hash(password: bytes) -> str:
    """Return a hash that takes no time."""
    return _CHEAP.hash(password)


def credentials(
    username: str | None = None,
    password: bytes | None = None,
    *,
    client_id: str = "sensor-1",
    address: str = "127.0.0.1",
    local: bool = True,
    certificate_user: str | None = None,
) -> Credentials:
    """Return what a client of this machine shows."""
    return Credentials(
        client_id=client_id,
        username=username,
        password=password,
        address=address,
        local=local,
        certificate_user=certificate_user,
    )


@functools.cache
def obviously_matches(topic_filter: str, topic: str) -> bool:
    """Match as MQTT 5 says it, section 4.7, level by level."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _levels_match(topic_filter.split("/"), topic.split("/"))


@functools.cache
def obviously_matched(topic_filter: str) -> frozenset[str]:
    """Return those of `TOPICS` that the filter matches; each filter is tried with each topic once."""
    return frozenset(topic for topic in TOPICS if obviously_matches(topic_filter, topic))


def _levels_match(filter_levels: list[str], levels: list[str]) -> bool:
    if not filter_levels:
        return not levels
    if filter_levels[0] == "#":
        return True
    if not levels:
        return False
    return filter_levels[0] in ("+", levels[0]) and _levels_match(filter_levels[1:], levels[1:])


def filters(levels: tuple[str, ...] = NAMED, levels_max: int = 3) -> st.SearchStrategy[str]:
    """Make legal filters of these levels and wildcards."""
    body = st.lists(st.sampled_from([*levels, "+", "+"]), max_size=levels_max)
    tail = st.sampled_from([[], ["#"]])
    return st.builds(lambda parts, end: "/".join(parts + end), body, tail).filter(bool)
