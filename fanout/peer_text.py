"""Intake of texts and documents that a peer wrote: their bounds and their form.

Texts for people are short and printable, names are names, and a document is parsed only when it and its numbers are
short. So text from a peer can go on into HTTP answers, log lines, the replication log and documents for other nodes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

__all__ = ["TEXT_CHARACTERS_MAX", "clean_text", "is_node_name", "read_document"]

TEXT_CHARACTERS_MAX: Final = 512
"""Longest text for people; longer ones are cut."""
_VALUES_MAX: Final = 500_000
"""Values in a document, with commas in texts: a longer one of empty lists would take seconds and 40 times its bytes."""
_REPLACEMENT: Final = "\ufffd"
_DIGITS_MAX: Final = 19
"""Digits of an integer in a document: those of 64 bits."""
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Form of `node.id`, as the configuration has it."""


def clean_text(text: str) -> str:
    """Return a text for people with characters replaced that are not printable, such as control characters.

    White space becomes a space; other such characters, overrides of direction and surrogates too, become U+FFFD. A text
    that is too long ends with an ellipsis.
    """
    kept = text[:TEXT_CHARACTERS_MAX]
    if not kept.isprintable():
        kept = "".join(map(_printable, kept))
    return kept if len(text) <= TEXT_CHARACTERS_MAX else f"{kept[:-1]}\u2026"


def is_node_name(value: object) -> bool:
    """Tell whether a value is a legal identifier of a fanout node."""
    return isinstance(value, str) and _NODE_NAME.fullmatch(value) is not None


def read_document(document: bytes | bytearray, *, bytes_max: int) -> Any:
    """Return the value of a JSON document.

    Args:
        document: UTF-8.
        bytes_max: Longest document that is parsed.

    Raises:
        ValueError: It is too long, is not JSON, is nested too deeply, has too many values, or a number that is too long
            or not finite. Strings may contain surrogates, which JSON can spell.
    """
    if len(document) > bytes_max:
        raise ValueError(f"a document of more than {bytes_max} bytes")
    if sum(map(document.count, (b",", b"[", b"{"))) > _VALUES_MAX:
        raise ValueError(f"a document of more than {_VALUES_MAX} values")
    try:
        return json.loads(document.decode(), parse_int=_read_integer, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("a document that is nested too deeply") from error


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACEMENT


def _read_integer(digits: str) -> int:
    if len(digits) > _DIGITS_MAX:
        raise ValueError("a number that is too long")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
