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
"""Values in a document: more of them, such as empty lists, would take seconds and 40 times the bytes of it."""
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
    if _seems_large(document) and _seems_large(_without_texts(document)):
        raise ValueError(f"a document of more than {_VALUES_MAX} values")
    try:
        return json.loads(document.decode(), parse_int=_read_integer, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("a document that is nested too deeply") from error


def _seems_large(document: bytes | bytearray) -> bool:
    """Return True if there may be too many values, by what divides them; in a text it divides nothing."""
    return sum(map(document.count, (b",", b"[", b"{"))) > _VALUES_MAX


def _without_texts(document: bytes | bytearray) -> bytes:
    """Return a document without what stands in its texts; as it is if these alone are too many."""
    plain = bytes(document).replace(b"\\\\", b"").replace(b'\\"', b"")
    return plain if plain.count(b'"') > 2 * _VALUES_MAX else b"".join(plain.split(b'"')[::2])


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
