"""Messages about copies between members, and their form on the wire (core).

COPY brings copies in the order in which they were made; it is bytes, since there are many. Its answer, and INHERIT, are
JSON. Nothing of a peer's bytes is believed before its form is checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from fanout.durable.form.fields import FieldReader, text_form
from fanout.durable.ownership.copy_rules import CopyVersion, Right
from fanout.durable.ownership.epochs import Epoch, is_epoch_node
from fanout.peer_text import is_node_name, read_document

__all__ = [
    "COPY_BYTES_MAX",
    "COPY_PATH",
    "DOCUMENT_BYTES_MAX",
    "INHERIT_PATH",
    "CopyAnswer",
    "CopyRequest",
    "CopyRow",
    "InheritRequest",
    "PlacesRow",
    "Row",
    "copy_request_in_steps",
    "decode_copy_answer",
    "decode_inherit_answer",
    "decode_inherit_request",
    "encode_copy_answer",
    "encode_copy_request",
    "encode_inherit_answer",
    "encode_inherit_request",
]

COPY_PATH: Final = "/pool/copy"
INHERIT_PATH: Final = "/pool/inherit"
COPY_BYTES_MAX: Final = 32 << 20
"""Longest COPY; a longer copy of one session is not made."""
DOCUMENT_BYTES_MAX: Final = 1 << 20
"""Longest INHERIT, and answer to it."""
_ROWS_MAX: Final = 1000
"""Most sessions of one INHERIT."""
_STEP: Final = 256
"""Rows, or Client Identifiers of one, that are read in one step."""
_FORM: Final = 2
_HEAD: Final = struct.Struct("!BI")
"""Form, number of rows; the process of the sender follows."""
_ENDED, _WHOLE, _PLACES = range(3)
_KIND: Final = struct.Struct("!B")
_COPY: Final = struct.Struct("!QQ")
"""Counter of the epoch, number of the copy."""
_U32: Final = struct.Struct("!I")
_U64: Final = struct.Struct("!Q")
_COUNTER_MAX: Final = 1 << 62


class CopyRow(NamedTuple):
    """A copy of a session, or the end of one."""

    client_id: str
    """Client Identifier."""
    version: CopyVersion
    """Its version."""
    value: bytes | None
    """The copy; None for a session that has ended, or that another member keeps now."""


class PlacesRow(NamedTuple):
    """Places at which sessions go on that are otherwise as they were copied last."""

    places: bytes
    """The places."""
    client_ids: tuple[str, ...]
    """Client Identifiers."""
    number: int
    """Number among the copies of the holder, ascending: earlier places, and places of earlier copies, are outdated."""


Row: TypeAlias = CopyRow | PlacesRow


class CopyRequest(NamedTuple):
    """COPY: a member has copies of its sessions kept."""

    instance: str
    """Its process."""
    rows: Sequence[Row]
    """The copies, in the order in which they were made."""


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """Sessions of a COPY that were not kept as asked; all others are kept."""

    newer: Mapping[str, Epoch] = field(default_factory=dict)
    """Client Identifiers whose session is another member's since a later epoch."""
    missing: tuple[str, ...] = ()
    """Client Identifiers without a copy here that could go on at other places."""
    full: tuple[str, ...] = ()
    """Client Identifiers for whose copies there is no room."""
    unable: tuple[str, ...] = ()
    """Client Identifiers whose copies are of no use: the history lacks messages that they need."""


class InheritRequest(NamedTuple):
    """INHERIT: a member wants to go on with sessions of a holder that is gone."""

    holder: str
    """The holder."""
    instance: str
    """Its process."""
    copies: tuple[tuple[str, CopyVersion], ...]
    """Client Identifier and version of each copy."""


def encode_copy_request(request: CopyRequest) -> bytes:
    """Return COPY."""
    parts = [_HEAD.pack(_FORM, len(request.rows)), text_form(request.instance)]
    for row in request.rows:
        if isinstance(row, PlacesRow):
            parts += (_KIND.pack(_PLACES), _U64.pack(row.number), _U32.pack(len(row.places)), row.places)
            parts.append(_U32.pack(len(row.client_ids)))
            parts += map(text_form, row.client_ids)
            continue
        (counter, node), number = row.version
        parts += (
            _KIND.pack(_ENDED if row.value is None else _WHOLE),
            text_form(row.client_id),
            _COPY.pack(counter, number),
            text_form(node),
        )
        if row.value is not None:
            parts += (_U32.pack(len(row.value)), row.value)
    return b"".join(parts)


def copy_request_in_steps(data: bytes) -> Generator[None, None, CopyRequest]:
    """Return COPY, read in steps of some rows.

    Raises:
        ValueError: It is none.
    """
    form = FieldReader(data)
    version, count = form.unpack(_HEAD)
    if version != _FORM:
        raise ValueError("no legal form of a copy")
    instance = form.text()
    rows: list[Row] = []
    for done in range(count):
        if done % _STEP == 0:
            yield
        (kind,) = form.unpack(_KIND)
        if kind == _PLACES:
            (number,) = form.unpack(_U64)
            places = form.take(*form.unpack(_U32))
            client_ids: list[str] = []
            (ids,) = form.unpack(_U32)
            for left in range(ids, 0, -_STEP):
                client_ids += [form.text() for _ in range(min(left, _STEP))]
                yield
            rows.append(PlacesRow(places, tuple(client_ids), number))
            continue
        if kind not in (_ENDED, _WHOLE):
            raise ValueError("no legal kind of a copy")
        client_id = form.text()
        counter, number = form.unpack(_COPY)
        version_of = CopyVersion(_epoch(counter, form.text()), number)
        rows.append(CopyRow(client_id, version_of, form.take(*form.unpack(_U32)) if kind == _WHOLE else None))
    form.end()
    return CopyRequest(instance, rows)


def encode_copy_answer(answer: CopyAnswer) -> bytes:
    """Return the answer to COPY."""
    newer = {client_id: list(epoch) for client_id, epoch in answer.newer.items()}
    return json.dumps([newer, answer.missing, answer.full, answer.unable]).encode()


def decode_copy_answer(data: bytes) -> CopyAnswer:
    """Return the answer to COPY.

    Raises:
        ValueError: It is none.
    """
    said = read_document(data, bytes_max=COPY_BYTES_MAX)
    if not isinstance(said, list) or len(said) != 4 or not isinstance(said[0], Mapping):
        raise ValueError("no answer to a copy")
    newer = {client_id: _epoch(*_list(epoch, 2)) for client_id, epoch in said[0].items()}
    return CopyAnswer(newer, *map(_texts, said[1:]))


def encode_inherit_request(request: InheritRequest) -> bytes:
    """Return INHERIT."""
    copies = [[client_id, *version.epoch, version.number] for client_id, version in request.copies]
    return json.dumps([request.holder, request.instance, copies]).encode()


def decode_inherit_request(data: bytes) -> InheritRequest:
    """Return INHERIT.

    Raises:
        ValueError: It is none.
    """
    holder, instance, rows = _list(read_document(data, bytes_max=DOCUMENT_BYTES_MAX), 3)
    if not is_node_name(holder) or not isinstance(instance, str) or not isinstance(rows, list) or len(rows) > _ROWS_MAX:
        raise ValueError("no legal holder")
    copies = []
    for row in rows:
        client_id, counter, node, number = _list(row, 4)
        if not isinstance(client_id, str) or type(number) is not int or number < 0:
            raise ValueError("no legal copy")
        copies.append((client_id, CopyVersion(_epoch(counter, node), number)))
    return InheritRequest(holder, instance, tuple(copies))


def encode_inherit_answer(rights: Sequence[Right]) -> bytes:
    """Return the answer to INHERIT."""
    return json.dumps([str(right) for right in rights]).encode()


def decode_inherit_answer(data: bytes) -> list[Right]:
    """Return the answer to INHERIT.

    Raises:
        ValueError: It is none.
    """
    return [Right(text) for text in _texts(read_document(data, bytes_max=DOCUMENT_BYTES_MAX))]


def _list(value: Any, length: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise ValueError("no list of that length")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("no texts")
    return tuple(value)


def _epoch(counter: Any, node: Any) -> Epoch:
    if type(counter) is not int or not 0 <= counter < _COUNTER_MAX or not (node == "" or is_epoch_node(node)):
        raise ValueError("no legal epoch")
    return Epoch(counter, node)
