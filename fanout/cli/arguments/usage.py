"""Usage errors: faults of a command line, in the words of a user.

Owns the sentences for values that typer refuses: newer releases of it pass on the texts of the validator beneath, which
name neither the value nor a legal one. An argument may be a stranger's text that a script passes on, such as a topic,
so each message quotes it.
"""

from __future__ import annotations

from typing import Any, Final

import typer

from fanout.escaping import printable

__all__ = ["UsageError", "reword"]

UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""Any fault of a command line; of click, or of its copy in newer releases of typer."""


def reword(error: Any) -> None:
    """Replace the text of a validator by our own sentence, and make any `UsageError` printable."""
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
