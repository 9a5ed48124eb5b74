"""Reader of fields in bytes from another process, in order and never beyond the end (core)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

__all__ = ["FieldReader", "text_form"]

_LENGTH: Final = struct.Struct("!H")


def text_form(text: str) -> bytes:
    """Return a text after its length, as `FieldReader.text` reads it."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


class FieldReader:
    """Reads fields."""

    def __init__(self, data: bytes, *, error: Callable[[str], Exception] = ValueError) -> None:
        """Begin.

        Args:
            data: The fields.
            error: Makes the error that is raised, of what is wrong.
        """
        self._data = data
        self._at = 0
        self._error = error

    def take(self, size: int) -> bytes:
        """Read bytes."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise self._error("it is cut off")
        return self._data[begin : self._at]

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """Read numbers."""
        return fields.unpack(self.take(fields.size))

    def text(self) -> str:
        """Read a text."""
        try:
            return self.take(*self.unpack(_LENGTH)).decode()
        except UnicodeDecodeError as error:
            raise self._error("a text is not well-formed UTF-8") from error

    def rest(self) -> bytes:
        """Return what is left."""
        return self._data[self._at :]

    def end(self) -> None:
        """Require that nothing is left."""
        if self._at != len(self._data):
            raise self._error("bytes follow its end")
