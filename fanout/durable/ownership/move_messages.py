"""Messages by which sessions move between members, and their form on the wire (core).

All are requests with an answer, each for many sessions. They are JSON, but for the values of sessions in the answer to
FETCH, which are bytes behind their length. Nothing of a peer's bytes is believed before its form is checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fanout.durable.ownership.epochs import Epoch, is_epoch_node
from fanout.durable.ownership.ownership import Answer, Owner, Reply
from fanout.peer_text import read_document

__all__ = [
    "CLAIM_PATH",
    "COMMIT_PATH",
    "FETCH_ANSWER_BYTES_MAX",
    "FETCH_PATH",
    "OFFER_PATH",
    "PIECES_BYTES_MAX",
    "PIECE_PATH",
    "REQUEST_BYTES_MAX",
    "SESSION_BYTES_MAX",
    "SHORT_ANSWER_BYTES_MAX",
    "TAKE_ANSWER_BYTES_MAX",
    "TAKE_PATH",
    "ClaimAnswer",
    "ClaimQuestion",
    "Fetched",
    "Holding",
    "Piece",
    "PieceQuestion",
    "SessionQuestion",
    "Subscription",
    "TakeQuestion",
    "decode_claim_answers",
    "decode_claim_request",
    "decode_commit_answers",
    "decode_fetch_answers",
    "decode_fetch_request",
    "decode_piece_answers",
    "decode_piece_request",
    "decode_request",
    "decode_take_answers",
    "decode_take_request",
    "encode_claim_answers",
    "encode_claim_request",
    "encode_commit_answers",
    "encode_fetch_answers",
    "encode_fetch_request",
    "encode_piece_answers",
    "encode_piece_request",
    "encode_request",
    "encode_take_answers",
    "encode_take_request",
]

TAKE_PATH: Final = "/pool/take"
FETCH_PATH: Final = "/pool/fetch"
COMMIT_PATH: Final = "/pool/commit"
CLAIM_PATH: Final = "/pool/claim"
OFFER_PATH: Final = "/pool/offer"
PIECE_PATH: Final = "/pool/piece"
REQUEST_BYTES_MAX: Final = 1 << 20
"""Longest request: a chunk of questions has at most half of it."""
_QUESTIONS_MAX: Final = 1000
"""Most questions of one request (`fanout.pool.call_batches.ITEMS_MAX`)."""
SESSION_BYTES_MAX: Final = 64 << 20
"""Longest session: it has `queue_bytes_max`, and what is in flight."""
PIECES_BYTES_MAX: Final = 1 << 20
"""Bytes of sessions in one answer to PIECE."""
SHORT_ANSWER_BYTES_MAX: Final = 2 << 20
"""Longest answer to PIECE, COMMIT, CLAIM and OFFER that is read."""
FETCH_ANSWER_BYTES_MAX: Final = 8 << 20
"""Longest answer to FETCH that is read: a long session comes in pieces."""
TAKE_ANSWER_BYTES_MAX: Final = 16 << 20
"""Longest answer to TAKE that is read."""
_PIECE: Final = struct.Struct("!BQQI")
"""A flag for a value, then its bytes, their digest, the length of the piece."""
_COUNTER_MAX: Final = 1 << 62
_STATUS: Final = ("gone", "later", "exact", "inexact")


class SessionQuestion(NamedTuple):
    """Entry of one session in FETCH and COMMIT."""

    client_id: str
    """Client Identifier."""
    epoch: Epoch
    """Epoch of the request."""


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
    """True if the claimed session ends. Otherwise it goes on as a later one: the other one, a stranger's, has ended."""


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


class Subscription(NamedTuple):
    """A subscription of a session that is promised; what it was granted."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int


class Holding(NamedTuple):
    """Answer to TAKE of one session."""

    answer: Answer
    """The answer."""
    subscriptions: tuple[Subscription, ...]
    """Its subscriptions, with HELD."""
    owner_since: int = 0
    """Counter of the epoch since which the owner of a session has it that the client may end; 0 for none."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Answer to FETCH of one session."""

    status: str
    """`gone`: it is not promised any more; `later`: a message of its client has no verdict yet; `exact`: the value
    ends at the marker; `inexact`: no marker came."""
    value: bytes = b""
    """The value; empty with `gone` and `later`, and for a long one, which comes in pieces."""


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
    """False when the session is not kept for the member that asks any more."""
    total: int = 0
    """Bytes of the whole value; 0 while it is being made."""
    digest: int = 0
    """Digest of the whole value."""
    data: bytes = b""
    """The piece; empty when there was no room for one in the answer."""


# Requests.


def encode_request(questions: Sequence[SessionQuestion]) -> bytes:
    """Return COMMIT."""
    return json.dumps([[client_id, *epoch] for client_id, epoch in questions]).encode()


def decode_request(document: bytes) -> list[SessionQuestion]:
    """Return the questions of COMMIT.

    Raises:
        ValueError: It is none.
    """
    return [_question(one) for one in _questions(read_document(document, bytes_max=REQUEST_BYTES_MAX))]


def encode_claim_request(questions: Sequence[ClaimQuestion]) -> bytes:
    """Return CLAIM."""
    return json.dumps([[client_id, *epoch, *owner] for client_id, epoch, owner in questions]).encode()


def decode_claim_request(document: bytes) -> list[ClaimQuestion]:
    """Return the questions of CLAIM.

    Raises:
        ValueError: It is none.
    """
    questions = []
    for one in _questions(read_document(document, bytes_max=REQUEST_BYTES_MAX)):
        client_id, counter, node, user, superuser, anyone, since = _row(one, 7)
        owner = Owner(_text(user, empty=True), _flag(superuser), _flag(anyone), _counter(since))
        questions.append(ClaimQuestion(_text(client_id), _epoch(counter, node), owner))
    return questions


def encode_take_request(questions: Sequence[TakeQuestion]) -> bytes:
    """Return TAKE or OFFER."""
    rows = [[one.client_id, *one.epoch, one.user, one.superuser, one.anyone, one.clean] for one in questions]
    return json.dumps(rows).encode()


def decode_take_request(document: bytes) -> list[TakeQuestion]:
    """Return the questions of TAKE or OFFER.

    Raises:
        ValueError: It is neither.
    """
    questions = []
    for one in _questions(read_document(document, bytes_max=REQUEST_BYTES_MAX)):
        client_id, counter, node, user, superuser, anyone, clean = _row(one, 7)
        questions.append(
            TakeQuestion(
                _text(client_id),
                _epoch(counter, node),
                _text(user, empty=True),
                _flag(superuser),
                _flag(anyone),
                _flag(clean),
            )
        )
    return questions


def encode_fetch_request(questions: Sequence[SessionQuestion], markers: Mapping[str, str]) -> bytes:
    """Return FETCH; the markers are by link, and empty when there is none."""
    return json.dumps([dict(markers), [[client_id, *epoch] for client_id, epoch in questions]]).encode()


def decode_fetch_request(document: bytes) -> tuple[list[SessionQuestion], dict[str, str]]:
    """Return the questions of FETCH, and the markers by link.

    Raises:
        ValueError: It is none.
    """
    markers, questions = _row(read_document(document, bytes_max=REQUEST_BYTES_MAX), 2)
    if not isinstance(markers, Mapping) or not all(isinstance(marker, str) for marker in markers.values()):
        raise ValueError("no legal markers")
    return [_question(one) for one in _questions(questions)], dict(markers)


def encode_piece_request(questions: Sequence[PieceQuestion]) -> bytes:
    """Return PIECE."""
    return json.dumps([[client_id, *epoch, offset] for client_id, epoch, offset in questions]).encode()


def decode_piece_request(document: bytes) -> list[PieceQuestion]:
    """Return the questions of PIECE.

    Raises:
        ValueError: It is none.
    """
    questions = []
    for one in _questions(read_document(document, bytes_max=REQUEST_BYTES_MAX)):
        client_id, counter, node, offset = _row(one, 4)
        questions.append(PieceQuestion(_text(client_id), _epoch(counter, node), _counter(offset)))
    return questions


# Answers.


def encode_take_answers(answers: Sequence[Holding]) -> bytes:
    """Return the answers to TAKE."""
    rows = [
        [one.answer.reply.value, *one.answer.epoch, [list(each) for each in one.subscriptions], one.owner_since]
        for one in answers
    ]
    return json.dumps(rows).encode()


def decode_take_answers(document: bytes) -> list[Holding]:
    """Return the answers to TAKE.

    Raises:
        ValueError: It has none.
    """
    answers = []
    for one in _list(read_document(document, bytes_max=TAKE_ANSWER_BYTES_MAX)):
        reply, counter, node, subscriptions, since = _row(one, 5)
        answer = Answer(Reply(_text(reply)), _epoch(counter, node, none=True))
        own = tuple(_subscription(each) for each in _list(subscriptions))
        answers.append(Holding(answer, own, _counter(since)))
    return answers


def encode_fetch_answers(answers: Sequence[Fetched]) -> bytes:
    """Return the answers to FETCH: for each a byte for the status, and the value behind its length."""
    parts = []
    for one in answers:
        parts += [bytes((_STATUS.index(one.status),)), len(one.value).to_bytes(4), one.value]
    return b"".join(parts)


def decode_fetch_answers(document: bytes) -> list[Fetched]:
    """Return the answers to FETCH.

    Raises:
        ValueError: It has none, or more than there are questions in a request.
    """
    answers: list[Fetched] = []
    at = 0
    while at < len(document):
        if len(answers) == _QUESTIONS_MAX:
            raise ValueError("too many values of sessions")
        size = int.from_bytes(document[at + 1 : at + 5])
        value = document[at + 5 : at + 5 + size]
        if document[at] >= len(_STATUS) or at + 5 + size > len(document):
            raise ValueError("no legal values of sessions")
        answers.append(Fetched(_STATUS[document[at]], value))
        at += 5 + size
    return answers


def encode_piece_answers(answers: Sequence[Piece]) -> bytes:
    """Return the answers to PIECE."""
    parts = []
    for one in answers:
        parts += [_PIECE.pack(one.is_there, one.total, one.digest, len(one.data)), one.data]
    return b"".join(parts)


def decode_piece_answers(document: bytes) -> list[Piece]:
    """Return the answers to PIECE.

    Raises:
        ValueError: It has none, or more than there are questions in a request.
    """
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


def encode_commit_answers(answers: Sequence[bool]) -> bytes:
    """Return the answers to COMMIT or OFFER."""
    return json.dumps(list(answers)).encode()


def decode_commit_answers(document: bytes) -> list[bool]:
    """Return the answers to COMMIT or OFFER.

    Raises:
        ValueError: It has none.
    """
    return [_flag(one) for one in _list(read_document(document, bytes_max=SHORT_ANSWER_BYTES_MAX))]


def encode_claim_answers(answers: Sequence[ClaimAnswer | None]) -> bytes:
    """Return the answers to CLAIM; None where nothing is against it."""
    return json.dumps([None if one is None else [*one.epoch, one.prevails] for one in answers]).encode()


def decode_claim_answers(document: bytes) -> list[ClaimAnswer | None]:
    """Return the answers to CLAIM.

    Raises:
        ValueError: It has none.
    """
    rows = _list(read_document(document, bytes_max=SHORT_ANSWER_BYTES_MAX))
    return [None if one is None else _claim_answer(one) for one in rows]


# Their parts.


def _question(row: object) -> SessionQuestion:
    client_id, counter, node = _row(row, 3)
    return SessionQuestion(_text(client_id), _epoch(counter, node))


def _claim_answer(row: object) -> ClaimAnswer:
    counter, node, prevails = _row(row, 3)
    return ClaimAnswer(_epoch(counter, node), _flag(prevails))


def _subscription(row: object) -> Subscription:
    topic_filter, qos, no_local, retain_as_published, identifier = _row(row, 5)
    if qos not in (0, 1, 2) or type(qos) is not int or type(identifier) is not int or not 0 <= identifier < 1 << 28:
        raise ValueError("no legal subscription")
    return Subscription(_text(topic_filter), qos, _flag(no_local), _flag(retain_as_published), identifier)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("no list")
    return value


def _questions(value: object) -> list[Any]:
    questions = _list(value)
    if len(questions) > _QUESTIONS_MAX:
        raise ValueError("too many questions")
    return questions


def _row(value: object, length: int) -> list[Any]:
    row = _list(value)
    if len(row) != length:
        raise ValueError("a row of another length")
    return row


def _text(value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise ValueError("no text")
    value.encode()  # UnicodeEncodeError, a ValueError, for surrogates
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("no truth value")
    return value


def _epoch(counter: object, node: object, *, none: bool = False) -> Epoch:
    counter = _counter(counter)
    if not isinstance(node, str) or not (is_epoch_node(node) or (none and not node)):
        raise ValueError("no legal node of an epoch")
    return Epoch(counter, node)


def _counter(value: object) -> int:
    if type(value) is not int or not 0 <= value < _COUNTER_MAX:
        raise ValueError("no legal epoch")
    return value
