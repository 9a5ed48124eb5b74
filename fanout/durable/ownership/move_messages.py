"""Messages by which sessions move between members, and their form on the wire (core).

All are requests with an answer, each for many sessions, and each kind is one `Call`. A question or an answer is a row
of JSON with its fields in order, those of the values in it among them. The values of sessions in the answers to FETCH
and PIECE are bytes after their length. Nothing of a peer's bytes is believed before its form is checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fanout.durable.ownership.epochs import Epoch, is_epoch_node
from fanout.durable.ownership.ownership import Answer, Owner, Reply
from fanout.peer_text import read_document
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.exported_session import ExportedSubscription

__all__ = [
    "CLAIM",
    "COMMIT",
    "FETCH",
    "OFFER",
    "PIECE",
    "PIECES_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "SESSION_BYTES_MAX",
    "TAKE",
    "Call",
    "ClaimAnswer",
    "ClaimQuestion",
    "FetchQuestion",
    "Fetched",
    "Holding",
    "Piece",
    "PieceQuestion",
    "SessionQuestion",
    "TakeQuestion",
]

REQUEST_BYTES_MAX: Final = 1 << 20
"""Longest request: a chunk of questions has at most half of it."""
_QUESTIONS_MAX: Final = 1000
"""Most questions of one request (`fanout.pool.call_batches.ITEMS_MAX`)."""
SESSION_BYTES_MAX: Final = 64 << 20
"""Longest session: it has `queue_bytes_max`, and what is in flight."""
PIECES_BYTES_MAX: Final = 1 << 20
"""Bytes of sessions in one answer to PIECE."""
_SHORT_ANSWER_BYTES_MAX: Final = 2 << 20
"""Longest answer to PIECE, COMMIT, CLAIM and OFFER that is read."""
_FETCH_ANSWER_BYTES_MAX: Final = 8 << 20
"""Longest answer to FETCH that is read: a long session comes in pieces."""
_TAKE_ANSWER_BYTES_MAX: Final = 16 << 20
"""Longest answer to TAKE that is read."""
_TAKE_S: Final = 0.3
"""Time for TAKE: that for which a client waits."""
_FETCH_S: Final = 4.0
"""Time for FETCH, waiting for the marker and for other sessions of the call included."""
_CALL_S: Final = 1.0
"""Time for the other calls."""
_FETCHED: Final = struct.Struct("!BII")
"""Place of the status in `_STATUS`, lengths of the value and of the places."""
_PIECE: Final = struct.Struct("!BQQI")
"""A flag for a value, then its bytes, their digest, the length of the piece."""
_COUNTER_MAX: Final = 1 << 62
_STATUS: Final = ("gone", "later", "exact", "inexact")

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """One kind of request, with its form on the wire and its limits; a reader raises `ValueError` for another form."""

    path: str
    """Path of the request."""
    encode: Callable[[Sequence[Q]], bytes]
    """Returns the request for questions."""
    decode: Callable[[bytes], list[Q]]
    """Returns the questions of a request."""
    encode_answers: Callable[[Sequence[A]], bytes]
    """Returns the answers, one for each question."""
    decode_answers: Callable[[bytes], list[A]]
    """Returns them."""
    timeout_s: float = _CALL_S
    """Time for an answer."""
    answer_bytes_max: int = _SHORT_ANSWER_BYTES_MAX
    """Longest answer that is read."""


class SessionQuestion(NamedTuple):
    """COMMIT of one session; or what a member knows of one."""

    client_id: str
    """Client Identifier."""
    epoch: Epoch
    """Epoch of the request."""


class FetchQuestion(NamedTuple):
    """FETCH of one session; all of one request have the same markers."""

    client_id: str
    """Client Identifier."""
    epoch: Epoch
    """Epoch of the request."""
    markers: Mapping[str, str]
    """Link to marker; empty when there is none."""


class ClaimQuestion(NamedTuple):
    """CLAIM of one session: it is at the member that asks."""

    client_id: str
    """Client Identifier."""
    epoch: Epoch
    """Since when."""
    owner: Owner
    """Whose it is."""


class ClaimAnswer(NamedTuple):
    """Answer to CLAIM of one session where another one is, or was."""

    epoch: Epoch
    """Since when."""
    prevails: bool
    """True if the claimed session ends. Otherwise the other one, a stranger's, has ended, and the claimed one goes on.
    """


class TakeQuestion(NamedTuple):
    """TAKE of one session; or OFFER, which asks another member to take it."""

    client_id: str
    """Client Identifier."""
    epoch: Epoch
    """Epoch of the request."""
    user: str
    """The verified user of the client; empty without one."""
    superuser: bool
    """True if it may read and write every topic."""
    anyone: bool
    """True if the member that asks has no access control, so that anybody may have every session."""
    clean: bool = False
    """True if the client wants a new session: the one there stays until that is claimed, and says whether it may."""


class Holding(NamedTuple):
    """Answer to TAKE of one session."""

    answer: Answer
    """The answer."""
    subscriptions: tuple[ExportedSubscription, ...]
    """Its subscriptions, with HELD."""
    owner_since: int = 0
    """Epoch counter of a session that the client may end, at its owner; 0 for none."""

    @property
    def epoch(self) -> Epoch:
        """Epoch of the answer."""
        return self.answer.epoch


@dataclass(frozen=True, slots=True)
class Fetched:
    """Answer to FETCH of one session."""

    status: str
    """`gone`: it is not promised any more; `later`: a message of its client has no verdict yet; `exact`: the value
    ends at the marker; `inexact`: no marker came."""
    value: bytes = b""
    """The value; empty with `gone` and `later`, and for a long one, which comes in pieces."""
    places: bytes = b""
    """With `inexact`, the places at which the value ends (`encode_places`); empty if one of them has no name."""


class PieceQuestion(NamedTuple):
    """PIECE of one session that was fetched, and whose value is long."""

    client_id: str
    """Client Identifier."""
    epoch: Epoch
    """Epoch of the request."""
    offset: int
    """Number of bytes that have come."""


class Piece(NamedTuple):
    """Answer to PIECE."""

    is_there: bool
    """False if the session is no longer kept for the asking member."""
    total: int = 0
    """Bytes of the whole value; 0 while it is being made."""
    digest: int = 0
    """Digest of the whole value."""
    data: bytes = b""
    """The piece; empty when there was no room for one in the answer."""


# Rows.


def _encode(values: Sequence[tuple[Any, ...] | None]) -> bytes:
    return json.dumps([None if one is None else _flat(one) for one in values]).encode()


def _flat(value: tuple[Any, ...]) -> list[Any]:
    """Return the fields of a value, those of the values in it among them."""
    fields: list[Any] = []
    for field in value:
        fields += _flat(field) if isinstance(field, tuple) else (field,)
    return fields


def _questions(value: object, *checks: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """Yield the rows of a request, with a value for each check."""
    rows = _list(value)
    if len(rows) > _QUESTIONS_MAX:
        raise ValueError("too many questions")
    return _rows(rows, *checks)


def _rows(value: object, *checks: Callable[[Any], Any]) -> Iterator[list[Any]]:
    for row in _list(value):
        yield [check(field) for check, field in zip(checks, _row(row, len(checks)), strict=True)]


def _read_request(document: bytes) -> Any:
    return read_document(document, bytes_max=REQUEST_BYTES_MAX)


def _read_answer(document: bytes) -> list[Any]:
    return _list(read_document(document, bytes_max=_SHORT_ANSWER_BYTES_MAX))


# Requests.


def _decode_takes(document: bytes) -> list[TakeQuestion]:
    rows = _questions(_read_request(document), _text, _counter, _node, _any_text, _flag, _flag, _flag)
    return [TakeQuestion(client_id, Epoch(counter, node), *user) for client_id, counter, node, *user in rows]


def _decode_sessions(document: bytes) -> list[SessionQuestion]:
    rows = _questions(_read_request(document), _text, _counter, _node)
    return [SessionQuestion(client_id, Epoch(*epoch)) for client_id, *epoch in rows]


def _decode_claims(document: bytes) -> list[ClaimQuestion]:
    rows = _questions(_read_request(document), _text, _counter, _node, _any_text, _flag, _flag, _counter)
    return [ClaimQuestion(client_id, Epoch(counter, node), Owner(*owner)) for client_id, counter, node, *owner in rows]


def _decode_pieces_asked(document: bytes) -> list[PieceQuestion]:
    rows = _questions(_read_request(document), _text, _counter, _node, _counter)
    return [PieceQuestion(client_id, Epoch(*epoch), offset) for client_id, *epoch, offset in rows]


def _encode_fetches(questions: Sequence[FetchQuestion]) -> bytes:
    return json.dumps([dict(questions[0].markers), [_flat(one[:2]) for one in questions]]).encode()


def _decode_fetches(document: bytes) -> list[FetchQuestion]:
    markers, questions = _row(_read_request(document), 2)
    if not isinstance(markers, Mapping) or not all(isinstance(marker, str) for marker in markers.values()):
        raise ValueError("no legal markers")
    rows = _questions(questions, _text, _counter, _node)
    return [FetchQuestion(client_id, Epoch(*epoch), markers) for client_id, *epoch in rows]


# Answers.


def _encode_holdings(answers: Sequence[Holding]) -> bytes:
    rows = [
        [
            one.answer.reply.value,
            *one.answer.epoch,
            [[topic_filter.decode(), *options] for topic_filter, options in one.subscriptions],
            one.owner_since,
        ]
        for one in answers
    ]
    return json.dumps(rows).encode()


def _decode_holdings(document: bytes) -> list[Holding]:
    said = read_document(document, bytes_max=_TAKE_ANSWER_BYTES_MAX)
    rows = _rows(said, _reply, _counter, _node_or_none, _subscriptions, _counter)
    return [Holding(Answer(reply, Epoch(*epoch)), own, since) for reply, *epoch, own, since in rows]


def _encode_fetched(answers: Sequence[Fetched]) -> bytes:
    """Return for each a byte for the status, the lengths of the value and the places, and these."""
    parts = []
    for one in answers:
        parts += [_FETCHED.pack(_STATUS.index(one.status), len(one.value), len(one.places)), one.value, one.places]
    return b"".join(parts)


def _decode_fetched(document: bytes) -> list[Fetched]:
    answers: list[Fetched] = []
    at = 0
    while at < len(document):
        if len(answers) == _QUESTIONS_MAX:
            raise ValueError("too many values of sessions")
        if at + _FETCHED.size > len(document):
            raise ValueError("no legal values of sessions")
        status, size, places_size = _FETCHED.unpack_from(document, at)
        at += _FETCHED.size
        places_at, end = at + size, at + size + places_size
        if status >= len(_STATUS) or end > len(document):
            raise ValueError("no legal values of sessions")
        answers.append(Fetched(_STATUS[status], document[at:places_at], document[places_at:end]))
        at = end
    return answers


def _encode_pieces(answers: Sequence[Piece]) -> bytes:
    parts = []
    for one in answers:
        parts += [_PIECE.pack(one.is_there, one.total, one.digest, len(one.data)), one.data]
    return b"".join(parts)


def _decode_pieces(document: bytes) -> list[Piece]:
    answers: list[Piece] = []
    at = 0
    while at < len(document):
        if len(answers) == _QUESTIONS_MAX or at + _PIECE.size > len(document):
            raise ValueError("no legal pieces of sessions")
        is_there, total, digest, size = _PIECE.unpack_from(document, at)
        at += _PIECE.size
        if is_there > 1 or at + size > len(document):
            raise ValueError("no legal pieces of sessions")
        answers.append(Piece(bool(is_there), total, digest, document[at : at + size]))
        at += size
    return answers


def _encode_flags(answers: Sequence[bool]) -> bytes:
    return json.dumps(list(answers)).encode()


def _decode_flags(document: bytes) -> list[bool]:
    return [_flag(one) for one in _read_answer(document)]


def _decode_claim_answers(document: bytes) -> list[ClaimAnswer | None]:
    """Return the answers to CLAIM; None where nothing is against it."""
    return [None if one is None else _claim_answer(one) for one in _read_answer(document)]


# Their parts.


def _claim_answer(row: object) -> ClaimAnswer:
    counter, node, prevails = _row(row, 3)
    return ClaimAnswer(Epoch(_counter(counter), _node(node)), _flag(prevails))


def _subscriptions(value: object) -> tuple[ExportedSubscription, ...]:
    rows = _rows(value, _text, _qos, _flag, _flag, _identifier)
    return tuple(ExportedSubscription(name.encode(), SubscriptionOptions(*options)) for name, *options in rows)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("no list")
    return value


def _row(value: object, length: int) -> list[Any]:
    row = _list(value)
    if len(row) != length:
        raise ValueError("a row of another length")
    return row


def _text(value: object) -> str:
    if not value:
        raise ValueError("no text")
    return _any_text(value)


def _any_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    value.encode()  # UnicodeEncodeError, a ValueError, for surrogates
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("no truth value")
    return value


def _reply(value: object) -> Reply:
    return Reply(_text(value))


def _node(value: object) -> str:
    if not isinstance(value, str) or not is_epoch_node(value):
        raise ValueError("no legal node of an epoch")
    return value


def _node_or_none(value: object) -> str:
    return "" if value == "" else _node(value)


def _counter(value: object) -> int:
    if type(value) is not int or not 0 <= value < _COUNTER_MAX:
        raise ValueError("no legal number")
    return value


def _qos(value: object) -> int:
    if type(value) is not int or value not in (0, 1, 2):
        raise ValueError("no legal QoS")
    return value


def _identifier(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 28:
        raise ValueError("no legal Subscription Identifier")
    return value


TAKE: Final[Call[TakeQuestion, Holding]] = Call(
    "/pool/take", _encode, _decode_takes, _encode_holdings, _decode_holdings, _TAKE_S, _TAKE_ANSWER_BYTES_MAX
)
FETCH: Final[Call[FetchQuestion, Fetched]] = Call(
    "/pool/fetch", _encode_fetches, _decode_fetches, _encode_fetched, _decode_fetched, _FETCH_S, _FETCH_ANSWER_BYTES_MAX
)
PIECE: Final[Call[PieceQuestion, Piece]] = Call(
    "/pool/piece", _encode, _decode_pieces_asked, _encode_pieces, _decode_pieces
)
COMMIT: Final[Call[SessionQuestion, bool]] = Call(
    "/pool/commit", _encode, _decode_sessions, _encode_flags, _decode_flags
)
CLAIM: Final[Call[ClaimQuestion, ClaimAnswer | None]] = Call(
    "/pool/claim", _encode, _decode_claims, _encode, _decode_claim_answers
)
OFFER: Final[Call[TakeQuestion, bool]] = Call("/pool/offer", _encode, _decode_takes, _encode_flags, _decode_flags)
