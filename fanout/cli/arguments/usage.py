"""What is wrong with a command line, in the words of a user.

Owns the sentences for values that typer refuses: newer releases of it hand on those of the validator beneath, which
show neither the value nor what would do. An argument may be a stranger's text that a script hands on, a topic for
instance, and each message quotes it.
"""

from __future__ import annotations

from typing import Any, Final

import typer

from fanout.escaping import printable

__all__ = ["UsageError", "reword"]

UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""Anything wrong with a command line; of click, or of the copy of it in newer releases of typer."""


def reword(error: Any) -> None:
    """Put a sentence of our own into an error that comes from a validator, and make any `UsageError` printable."""
    find_faults = getattr(error.__cause__, "errors", None)
    if find_faults is not None:
        error.message = _sentence(find_faults()[0]) or error.message
    error.message = printable(error.message)


def _sentence(fault: dict[str, Any]) -> str:
    value, context = fault["input"], fault.get("ctx", {})
    match fault["type"]:
        case "greater_than_equal":
            return f"{value} is too small; the smallest value is {context['ge']:g}"
        case "less_than_equal":
            return f"{value} is too large; the largest value is {context['le']:g}"
        case "int_parsing" | "int_from_float":
            return f"'{value}' is not a whole number"
        case "float_parsing":
            return f"'{value}' is not a number"
        case "value_error":
            return str(context["error"])
        case _:
            return ""
