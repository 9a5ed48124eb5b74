"""Topics that a proved set did not bring: kept as unconfirmed ones, and removed with evidence.

`fanout.link.snapshot.absence` says which evidence is enough for what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from fanout.link.model.events import AbsenceAsked, Event, TopicsMissing
from fanout.link.model.evidence import Order
from fanout.link.snapshot.absence import EVIDENCE_WAIT_S, AbsenceCheck, Removable, find_whole_branch
from fanout.link.snapshot.audit import LiveAudits
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.diff import find_vanished
from fanout.link.snapshot.retained_pass import RetainedPass

__all__ = ["AbsentTopics"]

_NEVER = float("inf")


class AbsentTopics:
    """Decides what becomes of topics that a proved set did not bring, and removes them in pieces.

    Attributes:
        outside: Retained messages that the primary had beyond the replica when nothing was missing; None for unknown.
    """

    def __init__(
        self,
        context: LinkContext,
        *,
        audits: LiveAudits,
        piece_topics: Callable[[], int],
        now_ns: Callable[[], int],
        emit: Callable[[Event], None],
        remove: Callable[[list[bytes]], None],
    ) -> None:
        """Begin without any.

        Args:
            context: Collaborators of the link.
            audits: Audits of the link.
            piece_topics: Returns how many topics to remove before other work gets its turn.
            now_ns: Returns Unix time in nanoseconds.
            emit: Takes an event.
            remove: Removes topics from the replica, but for those that the running pass has brought.
        """
        self.outside: int | None = None
        self._config = context.config
        self._replica = context.replica
        self._peer = context.peer
        self._control = context.control
        self._count = context.count
        self._audits = audits
        self._piece_topics = piece_topics
        self._emit = emit
        self._now_ns = now_ns
        self._remove = remove
        self._removable: dict[int, Removable] = {}
        """Position of each selector with unconfirmed topics to the topics that may be removed."""
        self._check: AbsenceCheck | None = None
        """Evidence that the audit under way awaits after its pass; None for none."""
        self._removals: deque[Iterator[None]] = deque()
        """Steps that remove topics which that evidence shows to be deleted."""
        self._shown: set[bytes] | None = None
        """Topics, as named at the primary, that came as copies in this epoch; None unless live messages count as
        retained (`keep`)."""
        if self._config.version == 4 and self._config.retain_policy == "keep":
            self._shown = set()

    # --- begins ---

    def begin_epoch(self) -> None:
        """Forget what came as copies in the epoch before."""
        if self._shown is not None:
            self._shown.clear()

    def begin_pass(self) -> None:
        """Forget what the pass before did not bring."""
        self._removable.clear()

    def reselect(self) -> None:
        """Forget what was found with other selectors."""
        self._removable.clear()
        self.outside = None

    # --- after a proved set ---

    def settle(self, retained_pass: RetainedPass, *, removes: bool, few: bool) -> Iterator[None]:
        """Keep or remove what the running pass has not brought of its current set, one piece per step.

        Args:
            retained_pass: The pass.
            removes: True to remove the topics.
            few: True if they are not too many to be removed later, without confirmation.
        """
        if removes:
            yield from self._remove_unseen()
        else:
            yield from self._keep_unseen(retained_pass, few=few)
        if self._shown is not None:
            self._shown |= retained_pass.copied

    def _keep_unseen(self, retained_pass: RetainedPass, *, few: bool) -> Iterator[None]:
        """Keep topics as unconfirmed ones, and judge what may be removed later.

        With `retain_policy = "keep"` a topic that never came as a copy is removed: its messages were not retained.
        """
        replica, index, found = self._replica, retained_pass.current.index, list[bytes]()
        for number, values in enumerate(replica.unseen()):
            if number:
                yield
            gone = find_vanished(values, now_ns=self._now_ns())
            if (shown := self._shown) is not None:
                prefix = replica.selectors[index].prefix.encode()
                self._remove([topic for topic in gone if topic.removeprefix(prefix) not in shown])
                gone = [topic for topic in gone if topic.removeprefix(prefix) in shown]
            replica.unconfirmed.note(gone, selector_index=index)
            found += gone
        refusal, branch, removable = retained_pass.refused.get(index, ""), b"", Removable.NO
        if few and not refusal:
            branch = yield from find_whole_branch(replica, found)
            removable = Removable.EXACT if branch or self._peer.order is not Order.KNOWN else Removable.LIKELY
        if found or self._shown is None:
            self._removable[index] = removable
            self._emit(TopicsMissing(index, len(found), branch, refusal))

    def _remove_unseen(self) -> Iterator[None]:
        """Remove topics, but for values about to expire if an audit is under way: these are left to expire."""
        found: list[bytes] = []
        for number, values in enumerate(self._replica.unseen()):
            if number:
                yield
            is_audit = self._audits.current is not None
            found += find_vanished(values, now_ns=self._now_ns()) if is_audit else [each[0] for each in values]
            piece = self._piece_topics()
            while len(found) >= piece:
                self._remove(found[:piece])
                del found[:piece]
                yield
            if len(found) == self._replica.unseen_count:
                break
        self._remove(found)

    # --- evidence that they are deleted ---

    @property
    def is_any_judged(self) -> bool:
        """True if the newest pass left topics as unconfirmed ones."""
        return bool(self._removable)

    @property
    def is_checking(self) -> bool:
        """True if an audit awaits evidence after its pass."""
        return self._check is not None

    @property
    def check_due_s(self) -> float:
        """When to call `end_waiting`, monotonic seconds; infinity for never."""
        return _NEVER if self._check is None else self._check.deadline

    @property
    def is_removing(self) -> bool:
        """True while topics are removed that evidence shows to be deleted: `remove_next` does the next step."""
        return bool(self._removals)

    @property
    def is_check_over(self) -> bool:
        """True if an audit awaited evidence, and does not any more."""
        check = self._check
        return check is not None and not self._removals and (check.is_over or not self._replica.unconfirmed)

    @property
    def awaits_count(self) -> bool:
        """True if the primary's next count is awaited."""
        return self._check is not None and self._check.awaits_count

    def begin_check(self, now: float) -> bool:
        """Ask for evidence about the topics that the audit under way did not find; return False if there is none."""
        wanted = set(self._removable.values()) - {Removable.NO}
        check = AbsenceCheck(now + EVIDENCE_WAIT_S, removable=dict(self._removable))
        check.awaits_count = Removable.LIKELY in wanted and self.outside is not None
        check.awaits_answers = bool(wanted) and self._config.proves_absence
        if not self._replica.unconfirmed or check.is_over:
            return False
        self._check = check
        self._control.begin_heartbeats(now)
        if check.awaits_count:
            self._count.begin(now)
        if check.awaits_answers:
            self._emit(AbsenceAsked())
        return True

    def end_check(self) -> None:
        """Forget the evidence that the audit awaits: it has ended."""
        self._check = None
        self._removals.clear()

    def take_count(self) -> None:
        """Take the comparison with the primary's count that is awaited."""
        check = self._check
        assert check is not None
        check.awaits_count = False
        if self._count.outside is not None and self._count.outside == self.outside:
            topics = (topic for piece in self._replica.unconfirmed.pieces() for topic in piece)
            self._removals.append(self._remove_absent(topics, check, exact=False))

    def take_answers(self, topics: Iterable[bytes]) -> None:
        """Take exact evidence that topics are deleted at the primary.

        Args:
            topics: Local topics; those that are not unconfirmed now are ignored.
        """
        if self._check is not None and self._check.awaits_answers:
            self._removals.append(self._remove_absent(topics, self._check, exact=True))

    def end_answers(self) -> None:
        """Note that no more evidence about single topics comes."""
        if self._check is not None:
            self._check.awaits_answers = False

    def end_waiting(self) -> None:
        """Do without the evidence that has not come."""
        if self._check is not None:
            self._check.awaits_count = self._check.awaits_answers = False

    def remove_next(self) -> None:
        """Remove a piece of the topics that evidence shows to be deleted, if there are any."""
        if not self._removals:
            return
        if next(self._removals[0], True):
            self._removals.popleft()

    def _remove_absent(self, topics: Iterable[bytes], check: AbsenceCheck, *, exact: bool) -> Iterator[None]:
        """Remove unconfirmed topics, one piece per step, as far as their selectors allow it with such evidence."""
        replica, found = self._replica, list[bytes]()
        for topic in topics:
            if topic in replica.unconfirmed and check.may_remove(replica.index_of(topic), exact=exact):
                found.append(topic)
            if len(found) >= self._piece_topics():
                self._remove(found)
                found = []
                yield
        self._remove([topic for topic in found if topic in replica.unconfirmed])
