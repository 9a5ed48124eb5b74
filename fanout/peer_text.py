"""Text and documents that a peer wrote, where they are taken in.

Owns their bounds and their form: what is shown to people is short and printable, names are names, and a document is
looked at only when it is short and its numbers are. So whatever comes from a peer can go on into HTTP answers, log
lines, the replication log and documents for other nodes. It must not know what any of it means.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

__all__ = ["TEXT_CHARACTERS_MAX", "clean_text", "is_node_name", "read_document"]

TEXT_CHARACTERS_MAX: Final = 512
"""Characters of a text for people that are kept."""
_REPLACEMENT: Final = "\ufffd"
_DIGITS_MAX: Final = 19
"""Of an integer in a document: what 64 bits hold."""
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Form of `node.id`, as the configuration has it."""


def clean_text(text: str) -> str:
    """Return a text for people without what is not printable: control characters, overrides of direction, surrogates.

    White space becomes a space, anything else U+FFFD. A text that is too long ends with an ellipsis.
    """
    kept = text[:TEXT_CHARACTERS_MAX]
    if not kept.isprintable():
        kept = "".join(map(_printable, kept))
    return kept if len(text) <= TEXT_CHARACTERS_MAX else f"{kept[:-1]}\u2026"


def is_node_name(value: object) -> bool:
    """Say whether a value is an identifier that a fanout node may have."""
    return isinstance(value, str) and _NODE_NAME.fullmatch(value) is not None


def read_document(document: bytes | bytearray, *, bytes_max: int) -> Any:
    """Return the value of a JSON document.

    Args:
        document: UTF-8.
        bytes_max: A longer document is not looked at.

    Raises:
        ValueError: It is too long, is not JSON, is nested too deeply, or holds a number that is none or too long. Its
            strings may have surrogates: JSON can spell them.
    """
    if len(document) > bytes_max:
        raise ValueError(f"a document of more than {bytes_max} bytes")
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
