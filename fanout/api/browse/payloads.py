"""Payloads as text for JSON documents."""

from __future__ import annotations

import base64
import json
from typing import Final, NamedTuple

from fanout.api.browse.models import ValueFormat

__all__ = ["Shown", "show_payload"]

_CHARACTER_BYTES_MAX: Final = 4


class Shown(NamedTuple):
    """A payload in a document."""

    format: ValueFormat
    value: str
    cut: bool


def show_payload(payload: bytes, *, bytes_max: int) -> Shown:
    """Return a payload as JSON, text or base64; of a longer one the beginning.

    Args:
        payload: The payload; any bytes.
        bytes_max: Bytes of it that are shown.
    """
    cut = len(payload) > bytes_max
    part = payload[:bytes_max]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # A cut may go through a character; then the text ends before it.
        if not cut or error.start < len(part) - _CHARACTER_BYTES_MAX + 1 or error.reason != "unexpected end of data":
            return Shown("base64", base64.b64encode(part).decode(), cut)
        text = part[: error.start].decode()
    return Shown("json" if not cut and _is_json(text) else "text", text, cut)


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):  # numbers and words are text to a reader, and these need no layout
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
