"""Driver of a link's session machine: feeds it bytes and time, writes its output, and delivers its batches.

It keeps the order record, acknowledge, dispatch. Output goes to the Network Connection, through the commit gate where
values survive the process. It also owns the timer. `fanout.link.link` opens and closes Network Connections and
handles all other events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fanout.link.durability.commit_gate import CommitGate
from fanout.link.model.events import Applied, Event
from fanout.link.model.states import LinkState
from fanout.link.model.status import Clock, LinkSink
from fanout.link.session.machine import LinkSession
from fanout.link.transport.connection import LinkConnection
from fanout.replica.store import Replica

__all__ = ["Driver"]

_READ_AHEAD_STATES = (LinkState.SNAPSHOT, LinkState.PROVING, LinkState.RESUMING, LinkState.VERIFYING)
_NEVER = float("inf")


class Driver:
    """Driver of one link's session, over all its Network Connections."""

    def __init__(
        self,
        link: str,
        *,
        session: LinkSession,
        replica: Replica,
        sink: LinkSink,
        commit_gate: CommitGate | None,
        clock: Clock,
        on_event: Callable[[Event], None],
        on_full: Callable[[], None],
        on_unconfirmed: Callable[[], None],
        on_crash: Callable[[Exception], None],
    ) -> None:
        """Begin without a Network Connection and without a timer.

        Args:
            link: The link's name.
            session: The session machine.
            replica: Its replica, read only.
            sink: Receiver of batches.
            commit_gate: Gate to the store; None when values do not survive the process.
            clock: Clock of the node.
            on_event: Called for each event that is no batch, in order.
            on_full: Called when a limit of the replica has kept values out.
            on_unconfirmed: Called when the number of unconfirmed topics has changed.
            on_crash: Called for a bug, here or in the sink, that no caller would see.
        """
        self._link = link
        self._session = session
        self._replica = replica
        self._sink = sink
        self._commit_gate = commit_gate
        self._clock = clock
        self._on_event = on_event
        self._on_full = on_full
        self._on_unconfirmed = on_unconfirmed
        self._unconfirmed_told = 0
        """Number of unconfirmed topics at the last call of `on_unconfirmed`."""
        self._on_crash = on_crash
        self._connection: LinkConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._refused_told = 0
        """The replica's `refused_total` at the last call of `on_full`."""
        self._planned_expiry_ns: int | None = None
        """The replica's next expiry when the timer was last set."""

    def attach(self, connection: LinkConnection) -> None:
        """Write to `connection` from now on."""
        self._connection = connection
        if self._commit_gate is not None:
            self._commit_gate.connected(connection.write)

    def detach(self) -> None:
        """Stop writing: the Network Connection is gone."""
        self._connection = None
        if self._commit_gate is not None:
            self._commit_gate.disconnected()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, data: bytes) -> None:
        """Feed the session with a read."""
        clock = self._clock
        try:
            events = self._session.receive(data, now_ns=clock.now_ns(), now=clock.monotonic())
            self.act(events)
            lifecycle = self._session.lifecycle
            if (
                self._timer is None
                or self._session.output
                or lifecycle.stage is not None
                or lifecycle.audits.current is not None
                or len(events) != 1
                or type(events[0]) is not Applied
                or self._replica.next_expiry_ns != self._planned_expiry_ns
            ):  # nearly all reads change values only, so that no deadline is earlier than before
                self.write_and_plan()
        except Exception as error:
            self._on_crash(error)

    def act(self, events: Sequence[Event]) -> None:
        """Act on events of the session, one after another."""
        gate = self._commit_gate
        if gate is not None:
            self._store_changes(gate, events)
        for event in events:
            if type(event) is Applied:
                changes = event.changes
                if changes.updates:
                    self._sink.record(self._link, changes, epoch=event.epoch)
                if event.acknowledgement and gate is not None:
                    gate.acknowledge(event.acknowledgement)
                elif event.acknowledgement and self._connection is not None:
                    self._connection.write(event.acknowledgement)
                if changes.dispatch or changes.corrected:
                    self._sink.dispatch(self._link, changes)
            else:
                self._on_event(event)
        if self._replica.refused_total != self._refused_told:
            self._refused_told = self._replica.refused_total
            self._on_full()
        if self._replica.unconfirmed.count != self._unconfirmed_told:
            self._unconfirmed_told = self._replica.unconfirmed.count
            self._on_unconfirmed()

    def do(self, step: Callable[..., None], *values: object) -> None:
        """Call a step of the session (`LinkSession.run`), act on its events, write its output, and set the timer.

        Args:
            step: The step.
            values: Its arguments.
        """
        self.act(self._session.run(step, *values, now_ns=self._clock.now_ns(), now=self._clock.monotonic()))
        self.write_and_plan()

    def write_and_plan(self) -> None:
        """Write the output of the session, and set the timer to its deadline."""
        session = self._session
        if self._connection is not None:
            if output := session.take_output():
                if self._commit_gate is None:
                    self._connection.write(output)
                else:
                    self._store_changes(self._commit_gate, ())
                    self._commit_gate.write(output)
            self._connection.read_ahead = session.lifecycle.state in _READ_AHEAD_STATES or session.lifecycle.auditing
        now = self._clock.monotonic()
        self._planned_expiry_ns = self._replica.next_expiry_ns
        deadline = session.deadline(now_ns=self._clock.now_ns(), now=now)
        if deadline < self._timer_at:
            # A timer that fires early does no harm, so it is moved only when it would be late.
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        clock = self._clock
        try:
            self.act(self._session.tick(now_ns=clock.now_ns(), now=clock.monotonic()))
            self.write_and_plan()
        except Exception as error:
            self._on_crash(error)

    def _store_changes(self, gate: CommitGate, events: Sequence[Event]) -> None:
        gate.store(events, self._session.stored_session(), now_ns=self._clock.now_ns())
