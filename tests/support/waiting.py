"""Waiting for a condition with a deadline, in place of sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["wait_until", "wait_until_blocking"]

_POLL_S = 0.01


async def wait_until(
    condition: Callable[[], object], deadline_s: float = 60.0, *, what: str | Callable[[], str] = ""
) -> None:
    """Return as soon as `condition` holds, while the event loop keeps running.

    Args:
        condition: Called every 10 ms; holds when its result is true.
        deadline_s: How long to wait at most, in seconds.
        what: What was waited for, for the error; a function is called when the error is made.

    Raises:
        TimeoutError: The condition did not hold in time.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(_text(what, deadline_s))
        await asyncio.sleep(_POLL_S)


def wait_until_blocking(
    condition: Callable[[], object], deadline_s: float = 60.0, *, what: str | Callable[[], str] = ""
) -> None:
    """Return as soon as `condition` holds; for tests without an event loop.

    Args:
        condition: Called every 10 ms; holds when its result is true.
        deadline_s: How long to wait at most, in seconds.
        what: What was waited for, for the error; a function is called when the error is made.

    Raises:
        TimeoutError: The condition did not hold in time.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(_text(what, deadline_s))
        time.sleep(_POLL_S)


def _text(what: str | Callable[[], str], deadline_s: float) -> str:
    described = what() if callable(what) else what
    return f"{described or 'the condition'} did not hold within {deadline_s} s"
