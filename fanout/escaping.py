"""Escaping: text that strangers wrote, such as topics, Reason Strings and Client Identifiers, made safe to print."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["escape_unencodable", "printable", "printable_json", "printable_lines", "toml_string"]

_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols without a shape, with which two different names look the same (Unicode: characters
that are ignored by default, beyond those that `str.isprintable` refuses)."""


def printable(text: str, *, length_max: int | None = None) -> str:
    r"""Return text for one line, without a character that moves a cursor, ends the line, turns its direction or hides.

    Those are control and format characters, line and paragraph separators, blanks other than the space, surrogates,
    characters that Unicode has not assigned, and letters without a shape. Each becomes an escape as in Python, such as
    `\x1b`, `\n` or `\u202e`; text that is escaped already stays as it is.

    Args:
        text: Text of a stranger.
        length_max: Characters before the rest is left out, with a note of how many there are; None keeps all.
    """
    if length_max is not None and len(text) > length_max:
        return f"{printable(text[:length_max])}… ({len(text):,} characters)"
    if text.isprintable() and (text.isascii() or not _INVISIBLE.search(text)):
        return text
    return "".join(one.encode("unicode_escape").decode() if _is_hidden(one) else one for one in text)


def printable_lines(text: str) -> str:
    """Return text of several lines, such as a traceback, each `printable`, all after the first indented.

    So no line looks like a message of its own.
    """
    return "\n".join(f"  {line}" if at and line else line for at, line in enumerate(map(printable, text.split("\n"))))


def printable_json(text: str) -> str:
    """Return an equal JSON text without characters that `printable` escapes."""
    if text.isascii() and "\x7f" not in text:  # JSON itself escapes the other control characters of ASCII
        return text
    return "".join(_json_escape(one) if _is_hidden(one) and one != "\n" else one for one in text)


def toml_string(text: str) -> str:
    """Return a text as a basic string of TOML, without characters that `printable` escapes."""

    def character(one: str) -> str:
        if one in '"\\':
            return f"\\{one}"
        return f"\\U{ord(one):08x}" if _is_hidden(one) else one  # unlike JSON, TOML has no surrogate pairs

    return f'"{"".join(map(character, text))}"'


def escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes for characters that an output's encoding lacks; an error handler of `codecs`."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_json_escape, error.object[error.start : error.end])), error.end


def _is_hidden(character: str) -> bool:
    return not character.isprintable() or _INVISIBLE.match(character) is not None


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
