"""Waiting for a condition with a deadline, in place of sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["wait_refused", "wait_result", "wait_until", "wait_until_blocking"]

_Result = TypeVar("_Result")

_POLL_S = 0.01
_ATTEMPT_S = 0.1
"""Time between two attempts that cost the other side something."""


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


async def wait_result(attempt: Callable[[], Awaitable[_Result | None]], deadline_s: float = 60.0) -> _Result:
    """Return the first result of `attempt` that is not None; it is called ten times a second.

    Raises:
        TimeoutError: There was none in time.
    """
    async with asyncio.timeout(deadline_s):
        while (result := await attempt()) is None:
            await asyncio.sleep(_ATTEMPT_S)
        return result


async def wait_refused(port: int) -> None:
    """Return once nobody listens on a port of this machine; a connection that waits to be accepted is reset before."""

    async def attempt() -> bool | None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return True
        except ConnectionError:
            return None
        writer.close()
        return None

    await wait_result(attempt)


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
