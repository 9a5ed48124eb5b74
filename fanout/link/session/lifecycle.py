"""Lifecycle of a link's session: its states, epochs and stages, and what ends them.

Decides what follows from a stage that ends, from lost messages, and from a lost session. The transitions are in
`fanout.link.model.states`.

An *epoch* is the time of one session: CONNECT, a check of the primary's capabilities, a snapshot of each selector,
live. After a lost Network Connection the session is resumed and its pending messages are applied. Then the retained
sets are compared with the replica, because the primary's queue for the session may have overflowed. A value that
changed although the session was promised the message means that messages were lost; the replica is torn down, and a new
session begins. One that was not promised is only taken over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from fanout.errors import FanoutError, LinkLost, PrimaryRefused, ProtocolError, SnapshotUnproved
from fanout.link.model.events import (
    Applied,
    AuditCalled,
    AuditEnded,
    ControlRefused,
    Event,
    Failed,
    Forwarded,
    PromisesAsked,
    QosLowered,
    ResumedAtQos0,
    SelectorComplete,
    SessionSeen,
    StateEntered,
    SystemTopicsShunned,
    TearDown,
    TopicsMissing,
    TwinAlarmEnded,
    TwinAlarmRaised,
    ValuesReobtained,
    WentStale,
)
from fanout.link.model.evidence import Evidence, Order
from fanout.link.model.states import LinkState, Trigger, next_state
from fanout.link.protocol.forwarding import UNAVAILABLE, Forwarding
from fanout.link.protocol.name_request import NamedAnswer
from fanout.link.protocol.remote_session import RemoteSession
from fanout.link.protocol.sender import OutgoingMessage
from fanout.link.protocol.session_mark import SessionMark
from fanout.link.session.absent_topics import AbsentTopics
from fanout.link.session.evidence_retry import EvidenceRetry
from fanout.link.session.selector_state import SelectorState
from fanout.link.session.stale_policy import StalePolicy
from fanout.link.session.twin import TAKEN_OVER, TWIN_HINT, TwinAlarm
from fanout.link.session.value_expiry import ValueExpiry
from fanout.link.snapshot.audit import LiveAudits
from fanout.link.snapshot.capability_check import LIMIT_REFUSALS, CapabilityCheck, is_checked, refuse_control
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.diff import Losses, find_losses
from fanout.link.snapshot.hints import LOSS_HINT
from fanout.link.snapshot.missed_values import MISSED_MAX, MissedValues, PromiseCheck
from fanout.link.snapshot.retained_pass import RetainedPass
from fanout.link.snapshot.retained_set import CAME_LATE, Step
from fanout.link.snapshot.stage import PendingStage, Stage
from fanout.link.snapshot.sys_count import CountState
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Changes
from fanout.selection import Selector

__all__ = ["SessionLifecycle"]

_NEVER = float("inf")
_SETTLED_QUIETS = 3
"""Number of quiet times after which an unordered primary has no copies of a retained set under way any more."""
_SESSION_GONE = "the primary has no session for this link any more"


class SessionLifecycle:
    """Lifecycle of one link's session, over all its Network Connections.

    `at` sets the time for the calls that follow.

    Attributes:
        state: State of the link.
        epoch: Identity of the session, Unix time in microseconds at which it began; 0 before the first.
        selectors: State of each selector.
        snapshot_seconds: Duration of the newest complete snapshot; None before the first.
        connected: True if there is a Network Connection that is not to be closed.
        stage: Stage under way before the link is live, or the pass of an audit; None for none.
        stale_policy: Staleness of the replica.
        remote_session: State of the session at the primary.
        audits: Audits of the live link.
        evidence_retry: Attempts to get better evidence for it.
        mark: Mark of the session.
        twin: Alarm about another process with this node's identity.
        missed: Values that verifications of this session brought and no message did.
        absent: Topics that the newest pass did not bring.
        now: Monotonic seconds.
        now_ns: Unix time in nanoseconds.
        events: Events since the last call of `take_events`.
        expiry: Expiry of the replica's values.
    """

    def __init__(
        self, context: LinkContext, *, forwarding: Forwarding, seed: int, piece_topics: Callable[[], int]
    ) -> None:
        """Begin without a session.

        Args:
            context: Collaborators of the link.
            forwarding: Queue of forwarded messages.
            seed: A number that differs between processes, for the time of audits.
            piece_topics: Returns how many topics to remove before other work gets its turn.
        """
        config = context.config
        self.state = LinkState.DOWN
        self.epoch = 0
        self._counters = context.counters
        self.selectors = [SelectorState() for _ in context.replica.selectors]
        self.snapshot_seconds: float | None = None
        self.connected = False
        self.stage: Stage | None = None
        self.stale_policy = StalePolicy(config)
        self.remote_session = RemoteSession(config, sender=context.sender)
        self.audits = LiveAudits(config, seed=seed)
        self.evidence_retry = EvidenceRetry()
        self.mark = SessionMark(context.control, sender=context.sender)
        self.twin = TwinAlarm(context.config, node_id=context.node_id)
        self.missed = MissedValues(context.replica)
        self.now = 0.0
        self.now_ns = 0
        self.expiry = ValueExpiry(context.replica)
        self.absent = AbsentTopics(
            context,
            audits=self.audits,
            piece_topics=piece_topics,
            now_ns=lambda: self.now_ns,
            emit=self.emit,
            remove=self._remove,
        )
        self._context = context
        self._config = config
        self._replica = context.replica
        self._pipeline = context.pipeline
        self._sender = context.sender
        self._control = context.control
        self._peer = context.peer
        self._count = context.count
        self._forwarding = forwarding
        self._piece_topics = piece_topics
        self._proved: tuple[RetainedPass, Iterator[None]] | None = None
        """The pass whose set is proved, and the steps that follow from that; None for none."""
        self._joins_begun = 0
        """Number of passes over selectors that join."""
        self._snapshot_topics = 0
        self.events: list[Event] = []

    def at(self, now_ns: int, now: float) -> None:
        """Set the time for the calls that follow."""
        self.now_ns = now_ns
        self.now = now

    def emit(self, *events: Event) -> None:
        """Add events."""
        self.events += events

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self.events = self.events, []
        return events

    def restore(
        self, *, epoch: int, evidence: Iterable[Evidence | None], at_qos_0: Iterable[str], joining: frozenset[int]
    ) -> None:
        """Continue the epoch of an earlier machine, whose values the replica has.

        Args:
            epoch: See the class.
            evidence: Evidence for each selector.
            at_qos_0: See `StoredSession`.
            joining: Positions of the selectors that join.
        """
        self.epoch = epoch
        filters = frozenset(at_qos_0)
        self.selectors = [
            SelectorState(evidence=one, joins=index in joining, below_qos=selector.filter in filters)
            for index, (one, selector) in enumerate(zip(evidence, self._replica.selectors, strict=True))
        ]

    # --- figures ---

    @property
    def evidence(self) -> list[Evidence | None]:
        """Evidence for the snapshot of each selector in this epoch; None while there is none."""
        return [each.evidence for each in self.selectors]

    @property
    def joining(self) -> list[int]:
        """Positions of selectors that were added to the session of a link with others, and are not proved yet."""
        return [index for index, each in enumerate(self.selectors) if each.joins]

    @property
    def snapshot_topics(self) -> int:
        """Number of topics that the newest snapshot brought so far."""
        if isinstance(self.stage, RetainedPass) and self.state in (LinkState.SNAPSHOT, LinkState.PROVING):
            return self.stage.topics_total + self.stage.topics_now
        return self._snapshot_topics

    @property
    def auditing(self) -> bool:
        """True if the pass of an audit of the live link is under way."""
        return self.audits.current is not None and not self.absent.is_checking

    @property
    def comparison_due_s(self) -> float:
        """When to call `compare_or_seek`, monotonic seconds; infinity while neither can begin."""
        return min(self.audits.due_s, self.evidence_retry.due_s) if self.is_idle else _NEVER

    def compare_or_seek(self) -> None:
        """Begin the audit that is due, or else the search for better evidence."""
        if self.now >= self.audits.due_s:
            self.begin_audit(confirmed=None)
        else:
            self.seek_evidence()

    @property
    def is_idle(self) -> bool:
        """True if the link is live, and neither an audit nor a stage is under way."""
        return self.state is LinkState.LIVE and self.stage is None and self.audits.current is None

    def weak_selectors(self) -> Iterator[int]:
        """Yield the positions of selectors whose evidence is weaker than the node needs to be ready."""
        wanted = Evidence(self._config.min_evidence)
        for index, evidence in enumerate(self.evidence):
            # live_only has no retained set to prove
            if evidence is not None and not (evidence.is_at_least(wanted) or self._replica.selectors[index].live_only):
                yield index

    @property
    def below_own_qos(self) -> tuple[int, ...]:
        """Positions of selectors whose subscriptions have, or may have, QoS 0 in place of their own.

        Messages without RETAIN that are published while the session is absent are lost for them.
        """
        now = self.stage.below_own_qos if isinstance(self.stage, RetainedPass) else ()
        left = () if self.state in (LinkState.LIVE, LinkState.STALLED) else self._left_below_qos
        return tuple(sorted({*now, *left}))

    @property
    def _left_below_qos(self) -> tuple[int, ...]:
        return tuple(index for index, each in enumerate(self.selectors) if each.below_qos)

    @property
    def is_sweeping(self) -> bool:
        """True if topics that a proved set did not bring are being found and removed: `sweep` does the next step."""
        return self.absent.is_removing or (self._proved is not None and self._proved[0] is self.stage)

    @property
    def is_staged(self) -> bool:
        """True if PINGREQ belongs to a stage, or to the stage that follows a tear-down."""
        return self.stage is not None or self.state is LinkState.TEARING_DOWN

    @property
    def abandoned_at(self) -> float:
        """When the session of a link that is down expires at the primary, monotonic seconds; infinity for never."""
        if self.state is not LinkState.DOWN or not len(self._replica) or self.stale_policy.reason is not None:
            return _NEVER
        return self.remote_session.expires_at

    # --- Network Connections ---

    def open(self) -> None:
        """Note that a Network Connection begins."""
        self._trigger(Trigger.OPEN)
        self.connected = True
        self.mark.begin_connection()
        self.audits.end_late_copies()

    def accept(self, *, session_present: bool) -> None:
        """Resume the session that the primary has, or begin a new one."""
        if session_present:
            self.give_up(self._sender.resend_in_flight(self.now))
            if self._control.permitted and refuse_control(self._control, self._sender):
                self.emit(ControlRefused(self._control.refusal))
            self.remote_session.unsubscribe_stale(self.now)
            self.mark.check(self.now)
            if self._is_proved and (not self.joining or is_checked(self._context)):
                self._trigger(Trigger.SESSION_RESUMED)
                if below_qos := self._left_below_qos:
                    self.emit(ResumedAtQos0(below_qos))
            else:
                # Copies and the sentinel that the former connection requested may come first; Mosquitto keeps them.
                self._trigger(Trigger.SESSION_UNFINISHED)
                self._forget_evidence()
            self._begin_stage(PendingStage(self._context, now=self.now))
        elif len(self._replica) and not self._keep_stale(_SESSION_GONE):
            self._tear_down(Trigger.SESSION_LOST, _SESSION_GONE)
        else:
            self._begin_epoch()
            self._trigger(Trigger.SESSION_NEW)
            self._begin_snapshot()

    def fail(self, error: FanoutError) -> None:
        """End the Network Connection; the session may be resumed."""
        if self.state is not LinkState.CONNECTING:
            reason_code = error.reason_code if isinstance(error, ProtocolError) else ReasonCode.SUCCESS
            self._sender.disconnect(reason_code, end_session=not self.remote_session.exists, now=self.now)
        self.connected = False
        self.emit(Failed(error))

    def lose(self) -> None:
        """Note that the Network Connection is gone."""
        if isinstance(self.stage, CapabilityCheck):
            if self.stage.answered:
                self._peer.system_topics.note_answer()
            elif self.connected and (left_out := self._peer.system_topics.note_closed()):
                self.emit(SystemTopicsShunned(left_out))
        self.connected = False
        below_qos = self.below_own_qos
        for index, each in enumerate(self.selectors):
            each.below_qos = index in below_qos
        self._end_audit("the connection was lost")
        self.stage = None
        self._replica.drop_pass()
        if self.state not in (LinkState.DOWN, LinkState.CONNECTING):
            self.remote_session.go_offline(self.now)
            self.emit(SessionSeen())
        if self.state is not LinkState.DOWN:
            self._trigger(Trigger.LOST)

    # --- ends of a session ---

    def abandon(self) -> None:
        """Give up, offline, a session that has expired at the primary."""
        self._lose_session(Trigger.ABANDONED, "the session at the primary has expired")

    def end_grace(self) -> None:
        """Tear the stale replica down, and give up a snapshot that is under way to replace it."""
        reason = f"{self.stale_policy.reason}; the grace of {self._config.grace_s:g} s is over"
        self.stale_policy.end()
        self._tear_down(Trigger.GRACE_OVER, reason)
        if self.connected:
            self.fail(LinkLost(reason))

    def end_unproved(self, error: SnapshotUnproved) -> None:
        """Give up a retained set without evidence, and with it the session, or the audit that requested it."""
        is_check = isinstance(self.stage, CapabilityCheck) and self.state is LinkState.LIVE
        if not is_check and self.audits.current is None:
            self._counters.truncated_total += 1
            self._end_session(Trigger.UNPROVED, error.message, error)
            return
        is_loss = isinstance(self.stage, RetainedPass) and not self.stage.only_trickled
        self._give_up_comparison(str(error), loss=is_loss)

    def _give_up_comparison(self, why: str, *, loss: bool = False) -> None:
        """End what is under way on the live link: an audit, with the pass it may have, or a capability check."""
        if isinstance(self.stage, RetainedPass):
            self.stage.give_up(self.now)
            if self._sender.ping_sent_s is not None:
                self.audits.expect_late_copies()
        self.stage = None
        self._end_audit(why, loss=loss)

    def give_up_comparison(self) -> None:
        """End what is under way on the live link, because its selectors change."""
        self._give_up_comparison("the selectors change")

    def reselect(self, before: Sequence[Selector], moves: Sequence[int | None]) -> None:
        """Go on with the selectors that the replica has now; new ones are proved, and former ones unsubscribed.

        Nothing may be under way (`give_up_comparison`).

        Args:
            before: The former selectors.
            moves: The former position of each selector (`fanout.selection.find_moves`).

        Raises:
            PrimaryRefused: A selector exceeds a limit of the primary.
        """
        may_join = any(self.evidence)
        self.selectors = [SelectorState(joins=True) if at is None else self.selectors[at] for at in moves]
        for each in self.selectors:
            each.joins = each.joins and may_join
        self.absent.reselect()
        self.evidence_retry.end()
        selectors = self._replica.selectors
        self.remote_session.reselect((one.filter for one in before), (one.filter for one in selectors))
        if self.connected:
            self._sender.check(selectors)
            self.remote_session.unsubscribe_stale(self.now)
            if self.is_idle:
                self.seek_evidence()

    def end_refused(self, error: PrimaryRefused) -> None:
        """Give up a session in which the primary refuses a selector during a verification.

        The next connection could not verify it either, so its values are not served any longer.

        Raises:
            PrimaryRefused: The link is not verifying.
        """
        if self.state is not LinkState.VERIFYING:
            raise error
        self._end_session(Trigger.LOSS, error.message, error)

    def end_taken_over(self, error: FanoutError) -> None:
        """End the Network Connection, and the session with it, because another client has taken the session."""
        self._raise_twin_alarm(TAKEN_OVER)
        if self.state in (LinkState.CONNECTING, LinkState.TEARING_DOWN):
            self.fail(error)
        else:
            self._end_session(Trigger.LOSS, self.twin.reason, error)

    def note_twin(self, sign: str, *, taken: bool) -> None:
        """Note a sign of another process with this node's identity; the session counts as lost at the first one.

        The other process may have taken messages at any time before.

        Args:
            sign: The sign, of `fanout.link.session.twin`.
            taken: True if it shows that the other process took this very session, so that it is lost again.
        """
        is_first = self._raise_twin_alarm(sign)
        if (is_first or taken) and self.connected and self.state is not LinkState.TEARING_DOWN:
            self._end_session(Trigger.LOSS, self.twin.reason, LinkLost(self.twin.reason, hint=TWIN_HINT))

    def end_twin_alarm(self) -> None:
        """End the alarm about another process, which has been silent for a while."""
        self.twin.end()
        self.emit(TwinAlarmEnded())

    def _raise_twin_alarm(self, sign: str) -> bool:
        before = self.twin.reason
        self.twin.raise_alarm(sign, now=self.now, live=self.state is LinkState.LIVE)
        if self.twin.reason != before:
            self.emit(TwinAlarmRaised(self.twin.reason))
        return not before

    def note_torn_down(self) -> None:
        """Note that the replica was removed, and begin a new epoch if there is a Network Connection."""
        assert not len(self._replica)
        self.stale_policy.end()
        if not self.connected:
            self._trigger(Trigger.TORN_DOWN_OFFLINE)
        else:
            self._begin_epoch()
            self._trigger(Trigger.TORN_DOWN)
            self._begin_snapshot()

    def give_up(self, messages: Iterable[OutgoingMessage]) -> None:
        """Emit that the fate of `messages` will never be known."""
        self.emit(*(Forwarded(message.token, UNAVAILABLE) for message in messages if message.token))

    # --- stages, and the live link ---

    def advance(self) -> None:
        """Act on a stage that the newest packet, or the time, has completed."""
        stage = self.stage
        if stage is None:
            return
        if isinstance(stage, CapabilityCheck) and stage.done:
            self._take_findings(stage)
        elif isinstance(stage, PendingStage) and stage.done:
            if self.state is LinkState.RESUMING:
                self._trigger(Trigger.PENDING_APPLIED)
                self._begin_pass(compare=True)
            else:
                self._begin_snapshot()
        elif isinstance(stage, PromiseCheck) and stage.done:
            self._end_verification()
        elif isinstance(stage, RetainedPass):
            while self.stage is stage and not self.is_sweeping and (step := stage.advance(self.now)) is not None:
                if step is Step.PROVED:
                    self._proved = stage, self._prove(stage)
                    self.sweep()
                elif step is Step.DONE:
                    self._finish(stage)
                elif self.state is LinkState.SNAPSHOT:
                    self._trigger(Trigger.BARRIER)

    def sweep(self) -> None:
        """Do the next step after a proved set; to be called while `is_sweeping`, and `advance` afterwards."""
        if self.absent.is_removing:
            self.go_on_removing()
            return
        assert self._proved is not None
        if next(self._proved[1], True):
            self._proved = None

    def _take_findings(self, check: CapabilityCheck) -> None:
        """Take what a capability check has found, and begin the pass that follows from it, if one does."""
        live, peer = self.state is LinkState.LIVE, self._peer
        peer.system_topics.note_answer()
        if not live or (check.order.is_better_than(peer.order) and peer.why_unordered != CAME_LATE):
            peer.learn(check.sentinel, check.order, check.why, is_mosquitto=check.is_mosquitto)
            if check.is_mosquitto:
                self._pipeline.lift_receive_maximum()
        if self._control.refusal:
            self.emit(ControlRefused(self._control.refusal))
        if not live:
            self._begin_pass(compare=False)
            return
        self.stage = None
        if self.audits.current is not None:
            self._begin_pass(compare=True, positions=self._proved_from(self.audits.current.first))
        else:
            self._prove_again()

    def seek_evidence(self) -> None:
        """Repeat what may give better evidence for the retained sets of the live link, which is idle."""
        if not self._seeks_evidence:
            self.evidence_retry.end()
            return
        self.evidence_retry.plan(self.now)
        if self.joining:
            self.audits.begin(confirmed=None, now=self.now, reason="joining")
            # One whose set cannot be proved ends the pass, so each attempt begins with another one.
            self._joins_begun += 1
            joining = deque(self.joining)
            joining.rotate(1 - self._joins_begun)
            self._begin_pass(compare=False, positions=joining)
        elif self._lacks_findings:
            self._begin_recheck()
        else:
            self._prove_again()

    def recheck(self) -> None:
        """Begin a capability check if the link is live and idle, and the newest one left something to be found."""
        if self.is_idle and self._lacks_findings:
            self._begin_recheck()
        elif self.is_idle:
            self.seek_evidence()

    @property
    def _seeks_evidence(self) -> bool:
        return bool(self.joining) or any(True for _ in self.weak_selectors()) or self._lacks_heartbeats

    @property
    def _lacks_heartbeats(self) -> bool:
        """True if a right may be granted later that lets heartbeats come back.

        With the bridge bit few primaries return them at all, and limits of the primary are told in CONNACK.
        """
        config = self._config
        may_come = bool(config.heartbeat_s) and (config.version == 5 or config.retain_policy == "keep")
        return may_come and not self._control.is_open and self._control.refusal not in LIMIT_REFUSALS

    @property
    def _lacks_findings(self) -> bool:
        """True if a capability check may lead to better evidence, or to a known lag."""
        unordered = self._peer.order is not Order.KNOWN and self._peer.why_unordered != CAME_LATE
        return unordered or not self._control.is_open

    def _begin_recheck(self) -> None:
        self._control.ask_again()
        self._begin_stage(CapabilityCheck(self._context))

    def _prove_again(self) -> None:
        """Begin an audit, or a comparison with the primary's count, if it may give a weak selector better evidence."""
        weak = [self.evidence[index] for index in self.weak_selectors()]
        possible = Evidence.MARKER if self._control.is_open else Evidence.BARRIER
        if self._peer.order is not Order.NONE and any(each and not each.is_at_least(possible) for each in weak):
            self.audits.begin(confirmed=None, now=self.now, reason="evidence")
            self._begin_pass(compare=True)
        elif weak and self._peer.is_mosquitto and self._count.is_idle:
            self._count.begin(self.now)

    def begin_audit(self, *, confirmed: int | None, reason: str = "", first: int = 0, recheck: bool = False) -> str:
        """Begin an audit; return why none can begin, or an empty string when one did.

        Args:
            confirmed: Number of unconfirmed topics that an operator confirmed as deleted at the primary; None for no
                confirmation.
            reason: Cause of the audit (`AuditReport`).
            first: Position of the selector whose set is taken first.
            recheck: True to request first what the primary has refused, or not shown.
        """
        if self.state is not LinkState.LIVE:
            return f"the link is {self.state.value.replace('_', ' ')}"
        if self.audits.current is not None:
            return "an audit is under way"
        rechecking = isinstance(self.stage, CapabilityCheck)
        if self.stage is not None and not rechecking:
            return f"the link is {self.state.value}, and a pass is under way"
        unconfirmed = len(self._replica.unconfirmed)
        if confirmed is not None and confirmed != unconfirmed:
            return f"{unconfirmed} {'topic is' if unconfirmed == 1 else 'topics are'} unconfirmed now, not {confirmed}"
        if not any(self.evidence):  # all selectors join, so their proof is the only comparison
            self.seek_evidence()
            return ""
        self.audits.begin(confirmed=confirmed, now=self.now, reason=reason, first=first)
        if reason == "sample":  # a pool that differs shows that one of its members is behind, perhaps another one
            self.emit(AuditCalled(f"the primary and the replica differ ({reason})"))
        if rechecking:
            return ""  # the pass follows it
        if recheck and self._lacks_findings:
            self._begin_recheck()
        else:
            self._begin_pass(compare=True, positions=self._proved_from(first))
        return ""

    def call_audit(self, reason: str) -> None:
        """Have an audit follow soon, and tell that something may be wrong until it has ended.

        Args:
            reason: Why something may be wrong, for an operator.
        """
        self.audits.call(reason, self.now)
        self.emit(AuditCalled(reason))

    def note_right_lost(self) -> None:
        """Have an audit follow, and ask now and then whether heartbeats are let through again."""
        self.call_audit("the primary refuses heartbeats that it took before, so other rights may be gone too")
        self.evidence_retry.plan(self.now)

    def stall(self, reason: str) -> None:
        """Note that heartbeats are overdue."""
        self._end_audit("the link stalled")
        self._trigger(Trigger.STALL, reason)

    def revive(self) -> None:
        """Note that a heartbeat came back after a stall, and verify the replica."""
        self._trigger(Trigger.REVIVED)
        if any(self.evidence):
            self._begin_pass(compare=True)
        else:  # all selectors join
            self._go_live(Trigger.VERIFIED)

    def confirm_count(self, index: int) -> None:
        """Note that the replica and the primary count the same for a selector that is proved, while live."""
        if self.state is LinkState.LIVE:
            self._strengthen(index, Evidence.COUNT)

    # --- evidence that missing topics are deleted ---

    def take_count(self) -> None:
        """Take a comparison with the primary's count: as evidence now, or as the reference for later ones."""
        outside = self._count.outside
        if self.absent.awaits_count:
            self.absent.take_count()
            self.go_on_removing()
            return
        if outside is None or self.audits.current is not None or self._replica.unconfirmed:
            return
        if self._count.is_short:
            if self._count.state is not CountState.OFF:
                return
            if outside != self.absent.outside:  # an audit that found nothing was told the same before
                self.call_audit(f"the primary has {-outside} retained messages fewer than there are topics here")
        self.absent.outside = outside

    def take_absent(self, topics: Iterable[bytes]) -> None:
        """Take exact evidence, as an `AbsenceAsked` event asked, that local topics are deleted at the primary."""
        self.absent.take_answers(topics)
        self.go_on_removing()

    def end_absent(self) -> None:
        """Note that all evidence was given that an `AbsenceAsked` event asked for."""
        self.absent.end_answers()
        self.go_on_removing()

    def take_promises(self, answer: NamedAnswer | str) -> None:
        """Take the primary's answer to a request for names in doubt, or why there is none."""
        if isinstance(self.stage, PromiseCheck):
            if isinstance(answer, str):
                self.missed.give_up(answer)
            else:
                self.missed.take(answer)
            self.advance()

    def go_on_removing(self) -> None:
        """Act on what `absent` was told: remove the next piece, and end the audit that awaits nothing more."""
        self.absent.remove_next()
        if self.absent.is_check_over:
            self._end_audit()

    def _begin_absence_check(self) -> None:
        """Ask for evidence about the topics that the audit under way did not find, or end it."""
        assert self.audits.current is not None
        self.audits.current.passed_s = self.now
        if not self.absent.begin_check(self.now):
            self._end_audit()

    @property
    def next_expiry_ns(self) -> int | None:
        """When `remove_expired` has something to remove, Unix time in nanoseconds; None for never."""
        return None if self.state is LinkState.TEARING_DOWN else self.expiry.next_ns

    def remove_expired(self) -> None:
        """Remove some expired values, unless a tear-down removes all values, or the time of day was set."""
        expiry_ns = self.next_expiry_ns
        if expiry_ns is not None and expiry_ns <= self.now_ns:
            self._tell_removed(self.expiry.remove(self.now_ns, piece=self._piece_topics()))

    def watch_clock(self) -> None:
        """Look whether the time of day was set; to be called before expired values are removed."""
        if self.expiry.watch_clock(now_ns=self.now_ns, now=self.now):
            self.call_audit("the time of day was set: values may have expired too early")

    # --- epochs and stages ---

    def _trigger(self, trigger: Trigger, detail: str = "") -> None:
        before, self.state = self.state, next_state(self.state, trigger)
        if self.state is not before:
            self.twin.enter_state(now=self.now, live=self.state is LinkState.LIVE)
            if self.state in (LinkState.LIVE, LinkState.TEARING_DOWN):
                self.stale_policy.forget_age()
            elif before is LinkState.LIVE:
                self.stale_policy.leave_live(current_s=self._control.current_s(self.now))
            self.emit(StateEntered(self.state, detail))
            if self.state is LinkState.LIVE:
                self._forwarding.send(self.now)  # what waited because the primary closed the connection at a message

    def _begin_epoch(self) -> None:
        self.epoch = max(self.now_ns // 1000, self.epoch + 1)
        self._counters.epochs_total += 1
        self.selectors = [SelectorState(each.topics_had) for each in self.selectors]
        self._control.begin_epoch()
        self.mark.begin_epoch()
        self._peer.begin_epoch()
        self._count.begin_epoch()
        self._pipeline.begin_session()
        self.give_up(self._forwarding.begin_session())
        self._replica.refused.clear()
        self.absent.begin_epoch()
        self.missed.clear()
        self.remote_session.begin()

    def _begin_snapshot(self) -> None:
        if is_checked(self._context):
            self._begin_pass(compare=False)  # a session that was resumed before its snapshot was complete
        else:
            self._begin_stage(CapabilityCheck(self._context))

    @property
    def _is_proved(self) -> bool:
        """True if the sets of all selectors are proved, but for those that join."""
        return any(self.evidence) and all(each.evidence or each.joins for each in self.selectors)

    def _proved_from(self, first: int) -> list[int]:
        """Return the positions of the selectors that do not join: `first` and those after it, then the others."""
        count = len(self.selectors)
        around = (index % count for index in range(first, first + count))
        return [index for index in around if not self.selectors[index].joins]

    def _forget_evidence(self) -> None:
        for each in self.selectors:
            each.evidence, each.joins = None, False

    def _begin_pass(self, *, compare: bool, positions: Sequence[int] | None = None) -> None:
        """Begin a pass over the sets of the selectors at these positions; None for all that do not join."""
        self.audits.note_pass()
        self.absent.begin_pass()
        positions = self._proved_from(0) if positions is None else positions
        had = [self._replica.count(index) if compare else each.topics_had for index, each in enumerate(self.selectors)]
        self._begin_stage(
            RetainedPass(self._context, compare=compare, paced=self.auditing, positions=positions, had=had)
        )

    def _begin_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.begin(self.now)

    def _prove(self, retained_pass: RetainedPass) -> Iterator[None]:
        """Compare a proved set with the replica, or sweep the topics that it did not bring, one step per turn.

        The pass ends with the last step, so that messages that come meanwhile are not swept. Only then it counts as
        proved.
        """
        index, evidence, audit = retained_pass.current.index, retained_pass.evidence, self.audits.current
        assert evidence is not None
        self.watch_clock()
        if held_back := retained_pass.take_held_back():
            self.emit(self._pipeline.apply_held_back(held_back, epoch=self.epoch))
        self.remove_expired()
        self._replica.close_pass()
        retained_pass.request_own_qos(self.now)
        losses = Losses(0, 0)
        selector, verifying = self.selectors[index], self.state is LinkState.VERIFYING
        joins = selector.joins
        if (audit is not None and not joins) or verifying:
            losses = yield from find_losses(
                self._replica,
                before=retained_pass.stamp_before,
                now_ns=self.now_ns,
                topics_max=MISSED_MAX + 1 if verifying else 0,
            )
        topics, exact = self._replica.count(index), evidence is Evidence.MANIFEST
        if verifying:
            prefix, promised = self._replica.selectors[index].prefix, self._is_promised(index)
            self.missed.note(losses.changed, losses.topics, prefix=prefix, promised=promised)
            if self.missed.lost:
                self._end_lost()
                return
        few = self.audits.is_few(losses.removed, topics)
        removes = exact and few
        if audit is not None and not joins:
            removes = audit.judge(losses, topics=topics, is_few=few, exact=exact)
        yield from self.absent.settle(retained_pass, removes=removes or not losses.removed, few=few)
        if index in retained_pass.refused:
            if joins:
                self.emit(TopicsMissing(index, 0, b"", retained_pass.refused[index]))
        elif audit is None or joins:
            selector.evidence, selector.joins = evidence, False
            if self.state is not LinkState.VERIFYING:
                self._complete_first(index, evidence)
        else:
            self._strengthen(index, evidence)
        self._replica.drop_pass()
        self._peer.note_order(retained_pass.order, retained_pass.why)
        if self._is_proved:
            self.stale_policy.end()
        retained_pass.begin_next(self.now)
        if self.state is LinkState.PROVING and not retained_pass.is_over:
            self._trigger(Trigger.PROVED)

    def _complete_first(self, index: int, evidence: Evidence) -> None:
        """Emit that a set is proved for the first time in this epoch."""
        if not self._replica.count(index):
            self.selectors[index].was_empty = True
        self.emit(SelectorComplete(index, evidence))

    def _strengthen(self, index: int, evidence: Evidence) -> None:
        """Take evidence for the set of a live selector if it is by answers, and stronger than what there is."""
        before = self.selectors[index].evidence
        if evidence.is_at_least(Evidence.BARRIER) and before is not None and not before.is_at_least(evidence):
            self.selectors[index].evidence = evidence
            self.emit(SelectorComplete(index, evidence))

    def _finish(self, retained_pass: RetainedPass) -> None:
        self.stage = None
        self._peer.note_order(retained_pass.order, retained_pass.why)
        self.expiry.note_compared(retained_pass.started_s)
        if self.auditing:
            self._begin_absence_check()
            return
        for index, each in enumerate(self.selectors):
            each.granted = retained_pass.lowered.get(index)
        self.emit(*(QosLowered(index, qos) for index, qos in retained_pass.lowered.items()))
        assert retained_pass.started_s is not None
        took_s = self.now - retained_pass.started_s
        self.audits.plan(self.now, took_s=took_s)
        if retained_pass.order is Order.NONE:
            # An old copy may have come after a newer update: an audit tells them apart.
            self.audits.hasten(self.now + _SETTLED_QUIETS * self._config.snapshot_quiet_s)
        if self.state is not LinkState.VERIFYING:
            self.snapshot_seconds = took_s
            self._snapshot_topics = retained_pass.topics_total
            self._go_live(Trigger.COMPLETED)
        elif self.missed.begin_try():
            self._begin_stage(PromiseCheck(self.missed))
            self.emit(PromisesAsked())
        else:
            self._end_verification()

    def _end_verification(self) -> None:
        """Go live after a verification, unless it has shown a loss."""
        self.stage = None
        if self.missed.lost:
            self._end_lost()
        else:
            self._go_live(Trigger.VERIFIED)

    def _end_lost(self) -> None:
        """Give up a session because messages were lost that it was promised."""
        lost = self.missed.lost
        self._end_session(Trigger.LOSS, lost, LinkLost(lost, hint=LOSS_HINT))

    def _is_promised(self, index: int) -> bool:
        """Say whether the session is promised what is published at QoS 1 or 2 for a selector."""
        selector = self.selectors[index]
        at_qos_0 = self._sender.version == 4 or selector.below_qos  # MQTT 3.1.1 leaves all at QoS 0
        qos = self._replica.selectors[index].qos if selector.granted is None else selector.granted
        return qos > 0 and not at_qos_0

    def _go_live(self, trigger: Trigger) -> None:
        self._control.begin_heartbeats(self.now)
        self._pipeline.redelivery.note_pending_applied()
        for each in self.selectors:
            each.below_qos = False
        repaired = self.missed.repaired
        self.missed.clear()
        if repaired:
            self.emit(ValuesReobtained(repaired))
        if trigger is Trigger.COMPLETED:
            self.mark.place(self.now)
        self._trigger(trigger)
        self.evidence_retry.end()
        if self._seeks_evidence:
            self.evidence_retry.plan(self.now)
        if self.absent.is_any_judged or repaired:
            audit = self.audits.begin(confirmed=None, now=self.now, reason="resumed")
            audit.note_repaired(repaired)
            self._begin_absence_check()
        elif self._peer.is_mosquitto:
            self._count.begin(self.now)
        if self.audits.called:  # while this pass was under way
            self.call_audit(self.audits.called)
        if self.joining and self.is_idle:
            self.seek_evidence()

    def _end_audit(self, failure: str = "", *, loss: bool = False) -> None:
        """End the audit under way, if there is one, and emit its report."""
        called, checked = self.audits.called, self.absent.is_checking
        unconfirmed = len(self._replica.unconfirmed)
        report = self.audits.end(now=self.now, unconfirmed=unconfirmed, failure=failure, loss=loss)
        self.absent.end_check()
        if report is None:
            return
        self.stage = None
        self.evidence_retry.rest(self.now, took_s=report.seconds)
        self._replica.drop_pass()
        if not checked:
            self._control.begin_heartbeats(self.now)
        self.emit(AuditEnded(report, called))
        if not (failure or unconfirmed) and self._peer.is_mosquitto and self.connected:
            self._count.begin(self.now)

    def _remove(self, topics: list[bytes]) -> None:
        changes = self._replica.sweep(topics, now_ns=self.now_ns)
        self._tell_removed(changes)
        if self.audits.current is not None:
            self.audits.current.note_removed(len(changes.updates))

    def _tell_removed(self, changes: Changes) -> None:
        if changes.updates:
            self.emit(Applied(changes, b"", self.epoch))

    def _end_session(self, trigger: Trigger, reason: str, error: FanoutError) -> None:
        self._lose_session(trigger, reason)
        self.fail(error)

    def _lose_session(self, trigger: Trigger, reason: str) -> None:
        """Give the session up; the replica is torn down, or still served, as the policy says."""
        if self._keep_stale(reason):
            self.stage = None
            self.remote_session.lose()
        else:
            self._tear_down(trigger, reason)

    def _keep_stale(self, reason: str) -> bool:
        """Say whether the replica of a lost session is still served."""
        was_stale = self.stale_policy.reason is not None
        if not self.stale_policy.begin(reason, complete=all(self.evidence), now=self.now):
            return False
        if not was_stale:
            self._note_topics_had()
            self._forget_evidence()
            self.emit(WentStale(reason))
        return True

    def _note_topics_had(self) -> None:
        """Remember how many topics each selector has, of a replica that was proved."""
        if all(self.evidence):
            for index, each in enumerate(self.selectors):
                each.topics_had = self._replica.count(index)

    def _tear_down(self, trigger: Trigger, reason: str) -> None:
        self._note_topics_had()
        self._forget_evidence()
        self.stage = None
        self.remote_session.lose()
        self._trigger(trigger, reason)
        self.emit(TearDown(reason))
