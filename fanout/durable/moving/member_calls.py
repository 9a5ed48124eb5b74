"""Calls to another member about sessions, each with the questions of many clients.

Owns the batches of each kind of question. A question fails with `AskFailed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import (
    CLAIM,
    COMMIT,
    FETCH,
    OFFER,
    PIECE,
    TAKE,
    Call,
    ClaimAnswer,
    ClaimQuestion,
    Fetched,
    FetchQuestion,
    Holding,
    PieceQuestion,
    SessionQuestion,
    TakeQuestion,
)
from fanout.durable.ownership.ports import Others
from fanout.pool.call_batches import CallBatches
from fanout.pool.membership import AskFailed, AskFailure

__all__ = ["AllMemberCalls", "MemberCalls"]

_KINDS: Final = ("take", "fetch", "piece", "commit", "claim", "offer")
"""Kinds of questions."""
_WAITING_MAX: Final = 200_000
"""Questions to one member that wait: claims of all clients that have connected while it was busy."""

Q = TypeVar("Q", TakeQuestion, SessionQuestion, PieceQuestion, ClaimQuestion)
A = TypeVar("A")
Mark: TypeAlias = Callable[[Sequence[SessionQuestion]], Awaitable[Mapping[str, str]]]
"""Sends the markers for the sessions of one FETCH, and returns them by link."""
OnDisk: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until the sessions that are here are on disk."""
Admit: TypeAlias = Callable[[Epoch], None]
"""Takes the word of another member for an epoch; raises `ValueError` for one that is not believed."""


class MemberCalls:
    """The questions to one member, in batches."""

    def __init__(self, member: str, *, others: Others, mark: Mark, on_disk: OnDisk, admit: Admit):
        """Prepare.

        Args:
            member: The member.
            others: Carries the calls.
            mark: Sends the markers for the sessions of one FETCH, and returns them by link.
            on_disk: Waits until the sessions that are here are on disk.
            admit: Takes the word of the member for an epoch.
        """
        self._member = member
        self._others = others
        self._mark = mark
        self._on_disk = on_disk
        self._admit = admit
        self.take = self._batches(TAKE)
        self.fetch = CallBatches(self._fetch, bytes_of=_bytes_of, waiting_max=_WAITING_MAX)
        self.piece = self._batches(PIECE)
        self.commit = self._batches(COMMIT)
        self.claim = CallBatches(self._claim, bytes_of=_bytes_of, waiting_max=_WAITING_MAX)
        self.offer = self._batches(OFFER)
        self.by_kind: Mapping[str, CallBatches[Any, Any]] = {kind: getattr(self, kind) for kind in _KINDS}
        """The batches of every kind."""

    def _batches(self, call: Call[Q, A]) -> CallBatches[Q, A]:
        async def send(questions: Sequence[Q]) -> list[A]:
            return await self._ask(call, questions)

        return CallBatches(send, bytes_of=_bytes_of, waiting_max=_WAITING_MAX)

    async def _fetch(self, questions: Sequence[SessionQuestion]) -> list[tuple[Fetched, Mapping[str, str]]]:
        markers = await self._mark(questions)
        asked = [FetchQuestion(client_id, epoch, markers) for client_id, epoch in questions]
        return [(fetched, markers) for fetched in await self._ask(FETCH, asked)]

    async def _claim(self, questions: Sequence[ClaimQuestion]) -> list[ClaimAnswer | None]:
        await self._on_disk()  # by the claim the former holder of a session lets go of its record
        return await self._ask(CLAIM, questions)

    async def _ask(self, call: Call[Any, A], questions: Sequence[Any]) -> list[A]:
        data = await self._others.call(
            self._member,
            call.path,
            call.encode(questions),
            timeout_s=call.timeout_s,
            answer_bytes_max=call.answer_bytes_max,
        )
        try:
            answers = call.decode_answers(data)
            for answer in answers:
                if isinstance(answer, Holding | ClaimAnswer):
                    self._admit(answer.epoch)
        except ValueError as error:
            raise AskFailed(AskFailure.ANSWER) from error
        return answers


class AllMemberCalls:
    """The questions to every other member."""

    def __init__(self, *, others: Others, mark: Mark, on_disk: OnDisk, admit: Admit) -> None:
        """Prepare; see `MemberCalls`."""
        self._others = others
        self._mark = mark
        self._on_disk = on_disk
        self._admit = admit
        self._calls: dict[str, MemberCalls] = {}

    def to(self, member: str) -> MemberCalls:
        """Return the questions to a member."""
        calls = self._calls.get(member)
        if calls is None:
            calls = MemberCalls(member, others=self._others, mark=self._mark, on_disk=self._on_disk, admit=self._admit)
            self._calls[member] = calls
        return calls

    @property
    def totals(self) -> dict[str, int]:
        """Calls that were made, by kind."""
        totals = dict.fromkeys(_KINDS, 0)
        for calls in self._calls.values():
            for kind, each in calls.by_kind.items():
                totals[kind] += each.calls_total
        return totals

    def close(self) -> None:
        """Ask nothing any more."""
        for calls in self._calls.values():
            for each in calls.by_kind.values():
                each.close()


def _bytes_of(question: TakeQuestion | SessionQuestion | PieceQuestion | ClaimQuestion) -> int:
    user = ""
    if isinstance(question, TakeQuestion):
        user = question.user
    elif isinstance(question, ClaimQuestion):
        user = question.owner.user
    return 120 + 6 * (len(question.client_id) + len(user))
