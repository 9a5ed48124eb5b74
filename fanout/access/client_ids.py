"""Patterns of Client Identifiers: texts in which `*` stands for any characters, or none.

Matching is linear in the length of both texts, because clients choose their identifiers.
"""

from __future__ import annotations

__all__ = ["matches_pattern"]


def matches_pattern(pattern: str, text: str) -> bool:
    """Tell whether the whole of `text` matches `pattern`, case-sensitively."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for piece in middle:  # the leftmost place of each piece leaves the most for the next ones
        position = text.find(piece, position, end)
        if position < 0:
            return False
        position += len(piece)
    return True
