"""Calls to another member about sessions, each with the questions of many clients.

Owns the batches of each kind of question, and the form of their calls. A question fails with `AskFailed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import (
    CLAIM_PATH,
    COMMIT_PATH,
    FETCH_ANSWER_BYTES_MAX,
    FETCH_PATH,
    OFFER_PATH,
    PIECE_PATH,
    SHORT_ANSWER_BYTES_MAX,
    TAKE_ANSWER_BYTES_MAX,
    TAKE_PATH,
    ClaimAnswer,
    ClaimQuestion,
    Fetched,
    Holding,
    Piece,
    PieceQuestion,
    SessionQuestion,
    TakeQuestion,
    decode_claim_answers,
    decode_commit_answers,
    decode_fetch_answers,
    decode_piece_answers,
    decode_take_answers,
    encode_claim_request,
    encode_fetch_request,
    encode_piece_request,
    encode_request,
    encode_take_request,
)
from fanout.durable.ownership.ports import Others
from fanout.pool.call_batches import CallBatches
from fanout.pool.membership import AskFailed, AskFailure

__all__ = ["AllMemberCalls", "MemberCalls"]

_KINDS: Final = ("take", "fetch", "piece", "commit", "claim", "offer")
"""Kinds of questions, in the order of `MemberCalls.all`."""

_TAKE_S: Final = 0.3
"""Time for TAKE: that for which a client waits."""
_FETCH_S: Final = 4.0
"""Time for FETCH, waiting for the marker and for other sessions of the call included."""
_CALL_S: Final = 1.0
"""Time for the other calls."""
_WAITING_MAX: Final = 200_000
"""Questions to one member that wait: claims of all clients that have connected while it was busy."""

T = TypeVar("T")
Mark: TypeAlias = Callable[[Sequence[SessionQuestion]], Awaitable[Mapping[str, str]]]
"""Sends the markers for the sessions of one FETCH, and returns them by link."""
Admit: TypeAlias = Callable[[Epoch], None]
"""Takes the word of another member for an epoch; raises `ValueError` for one that is not believed."""


class MemberCalls:
    """The questions to one member, in batches."""

    def __init__(self, member: str, *, others: Others, mark: Mark, admit: Admit):
        """Prepare.

        Args:
            member: The member.
            others: Carries the calls.
            mark: Sends the markers for the sessions of one FETCH, and returns them by link.
            admit: Takes the word of the member for an epoch.
        """
        sends = _Sends(member, others=others, mark=mark, admit=admit)

        def batches(send: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]) -> CallBatches[Any, Any]:
            return CallBatches(send, bytes_of=_bytes_of, waiting_max=_WAITING_MAX)

        self.take: CallBatches[TakeQuestion, Holding] = batches(sends.take)
        self.fetch: CallBatches[SessionQuestion, tuple[Fetched, Mapping[str, str]]] = batches(sends.fetch)
        self.piece: CallBatches[PieceQuestion, Piece] = batches(sends.piece)
        self.commit: CallBatches[SessionQuestion, bool] = batches(sends.commit)
        self.claim: CallBatches[ClaimQuestion, ClaimAnswer | None] = batches(sends.claim)
        self.offer: CallBatches[TakeQuestion, bool] = batches(sends.offer)

    def all(self) -> tuple[CallBatches[Any, Any], ...]:
        """Return the batches of every kind."""
        return self.take, self.fetch, self.piece, self.commit, self.claim, self.offer


class AllMemberCalls:
    """The questions to every other member."""

    def __init__(self, *, others: Others, mark: Mark, admit: Admit) -> None:
        """Prepare; see `MemberCalls`."""
        self._others = others
        self._mark = mark
        self._admit = admit
        self._calls: dict[str, MemberCalls] = {}

    def to(self, member: str) -> MemberCalls:
        """Return the questions to a member."""
        calls = self._calls.get(member)
        if calls is None:
            calls = MemberCalls(member, others=self._others, mark=self._mark, admit=self._admit)
            self._calls[member] = calls
        return calls

    @property
    def totals(self) -> dict[str, int]:
        """Calls that were made, by kind."""
        totals = dict.fromkeys(_KINDS, 0)
        for calls in self._calls.values():
            for kind, each in zip(_KINDS, calls.all(), strict=True):
                totals[kind] += each.calls_total
        return totals

    def close(self) -> None:
        """Ask nothing any more."""
        for calls in self._calls.values():
            for each in calls.all():
                each.close()


class _Sends:
    """Calls to one member, each with the questions of many sessions."""

    def __init__(self, member: str, *, others: Others, mark: Mark, admit: Admit):
        self._member = member
        self._others = others
        self._mark = mark
        self._admit = admit

    async def take(self, questions: Sequence[TakeQuestion]) -> list[Holding]:
        request = encode_take_request(questions)
        answer = await self._call(TAKE_PATH, request, timeout_s=_TAKE_S, bytes_max=TAKE_ANSWER_BYTES_MAX)
        holdings = _read(decode_take_answers, answer)
        self._admit_all(holding.answer.epoch for holding in holdings)
        return holdings

    async def fetch(self, questions: Sequence[SessionQuestion]) -> list[tuple[Fetched, Mapping[str, str]]]:
        markers = await self._mark(questions)
        request = encode_fetch_request(questions, markers)
        answer = await self._call(FETCH_PATH, request, timeout_s=_FETCH_S, bytes_max=FETCH_ANSWER_BYTES_MAX)
        return [(fetched, markers) for fetched in _read(decode_fetch_answers, answer)]

    async def piece(self, questions: Sequence[PieceQuestion]) -> list[Piece]:
        return _read(
            decode_piece_answers, await self._call(PIECE_PATH, encode_piece_request(questions), timeout_s=_CALL_S)
        )

    async def commit(self, questions: Sequence[SessionQuestion]) -> list[bool]:
        return _read(decode_commit_answers, await self._call(COMMIT_PATH, encode_request(questions), timeout_s=_CALL_S))

    async def offer(self, questions: Sequence[TakeQuestion]) -> list[bool]:
        return _read(
            decode_commit_answers, await self._call(OFFER_PATH, encode_take_request(questions), timeout_s=_CALL_S)
        )

    async def claim(self, questions: Sequence[ClaimQuestion]) -> list[ClaimAnswer | None]:
        answer = await self._call(CLAIM_PATH, encode_claim_request(questions), timeout_s=_CALL_S)
        answers = _read(decode_claim_answers, answer)
        self._admit_all(answer.epoch for answer in answers if answer is not None)
        return answers

    def _admit_all(self, epochs: Iterable[Epoch]) -> None:
        try:
            for epoch in epochs:
                self._admit(epoch)
        except ValueError as error:
            raise AskFailed(AskFailure.ANSWER) from error

    async def _call(
        self, path: str, body: bytes, *, timeout_s: float, bytes_max: int = SHORT_ANSWER_BYTES_MAX
    ) -> bytes:
        return await self._others.call(self._member, path, body, timeout_s=timeout_s, answer_bytes_max=bytes_max)


def _bytes_of(question: TakeQuestion | SessionQuestion | PieceQuestion | ClaimQuestion) -> int:
    user = ""
    if isinstance(question, TakeQuestion):
        user = question.user
    elif isinstance(question, ClaimQuestion):
        user = question.owner.user
    return 120 + 6 * (len(question.client_id) + len(user))


def _read(decode: Callable[[bytes], list[T]], answer: bytes) -> list[T]:
    try:
        return decode(answer)
    except ValueError as error:
        raise AskFailed(AskFailure.ANSWER) from error
