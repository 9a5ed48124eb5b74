"""Types of options: what is no size ends a benchmark before it starts a server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

__all__ = ["above_0", "at_least", "choices", "existing_file", "numbers"]


def at_least(smallest: int, *, largest: float = float("inf")) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of at least `smallest`, and at most `largest`."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{text} is too small; the smallest number is {smallest}")
        if value > largest:
            raise argparse.ArgumentTypeError(f"{text} is too large; the largest number is {largest}")
        return value

    return number


def above_0(text: str) -> float:
    """Return a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def existing_file(text: str) -> Path:
    """Return the path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def choices(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option that takes several names, with commas between them; none for an empty text."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(one for one in text.split(",") if one)
        if unknown := sorted(set(found) - set(known)):
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; choose from {', '.join(known)}")
        return found

    return names


def numbers(smallest: int) -> Callable[[str], tuple[int, ...]]:
    """Return the type of an option that takes several numbers of at least `smallest`, with commas between them."""
    number = at_least(smallest)

    def several(text: str) -> tuple[int, ...]:
        return tuple(map(number, text.split(",")))

    return several
