"""Sampling of a live link: with each heartbeat it requests some topics by name; where they differ, an audit follows.

Owns the task's waiting and the log lines; `fanout.link.snapshot.sampling` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from structlog.typing import FilteringBoundLogger

from fanout.config import LinkConfig
from fanout.errors import AuditRefused, FanoutError
from fanout.link.exact_names import NamedAnswer
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.states import LinkState
from fanout.link.model.status import Clock
from fanout.link.protocol.handshake import reason_text
from fanout.link.session.machine import LinkSession
from fanout.link.snapshot.sampling import Drawn, Sampling, Verdict
from fanout.peer_text import clean_text

__all__ = ["SampleWatch"]

_TAKEN_OVER_S = 1.0
"""A connection of the link that is lost so soon after a request by name may have been ended by it."""
_NEVER = float("inf")


class SampleWatch:
    """Sampling of one link; `run` goes on as long as one of its Network Connections.

    Attributes:
        sampling: Its rules of decision and its figures.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        sampling: Sampling,
        session: LinkSession,
        clock: Clock,
        logger: FilteringBoundLogger,
        ask: Callable[[Sequence[str]], Awaitable[NamedAnswer]],
        audit: Callable[[int], Awaitable[AuditReport]],
        write: Callable[[], None],
    ) -> None:
        """Prepare; nothing is requested.

        Args:
            config: The link's configuration.
            sampling: Its rules of decision.
            session: The link's session.
            clock: Clock of the node.
            logger: Logger.
            ask: Asks the primary for topics by name.
            audit: Audits the link, beginning with the selector at a position.
            write: Writes the session's output.
        """
        self.sampling = sampling
        self._config = config
        self._session = session
        self._clock = clock
        self._logger = logger
        self._ask = ask
        self._audit = audit
        self._write = write
        self._heartbeat_came = asyncio.Event()
        self._asked_s = -_NEVER
        """When the newest request began, monotonic seconds."""
        self._refusals_told: set[int] = set()
        """Reason Codes of refusals that were logged."""
        self._failure_told = ""
        """The failure that was logged last; empty when the newest sample did not fail."""

    def note_heartbeat(self) -> None:
        """Note that a heartbeat came back."""
        self._heartbeat_came.set()

    def note_connection_lost(self) -> None:
        """Note that the link's connection was lost, perhaps because of a request by name."""
        if self._clock.monotonic() < self._asked_s + _TAKEN_OVER_S:
            self.sampling.note_link_lost()

    async def run(self) -> None:
        """Take samples until cancelled."""
        lifecycle, sampling = self._session.lifecycle, self.sampling
        is_first = True
        while not sampling.off_for_good:
            await asyncio.sleep(sampling.pause_s)
            if lifecycle.state is LinkState.LIVE and lifecycle.stage is None:
                if not is_first:
                    sampling.note_link_kept()
                is_first = False
                await self._take_sample()

    async def _take_sample(self) -> None:
        clock, sampling, epoch = self._clock, self.sampling, self._session.lifecycle.epoch
        drawn = sampling.draw(now_ns=clock.now_ns())
        if not drawn.held:
            return
        began_s = self._asked_s = clock.monotonic()
        try:
            answer = await self._ask(tuple(drawn.held))
        except FanoutError as error:
            await self._fail(error)
            return
        if self._failure_told:
            self._failure_told = ""
            self._logger.info("primary answers requests by name again")
        doubtful = sampling.compare(drawn, answer, now_ns=clock.now_ns(), took_s=clock.monotonic() - began_s)
        self._tell_unasked()
        if doubtful:
            settled = await self._settle()
            lifecycle = self._session.lifecycle
            if not settled or lifecycle.state is not LinkState.LIVE or lifecycle.epoch != epoch or lifecycle.auditing:
                return  # the link is behind, or its values are compared anyway
        verdict = sampling.confirm(drawn, doubtful)
        sampling.take(verdict)
        if verdict:
            self._tell(verdict, drawn)
            sampling.note_audit(await self._begin_audit(verdict.first_index(drawn)))
            self._logger.info("sampling rests", reason=sampling.totals.off)

    async def _settle(self) -> bool:
        """Wait until every update has come that the primary sent before now; return whether they have.

        A heartbeat comes after them. If there are none, the time of a silent primary must do.
        """
        sent_s, control = self._clock.monotonic(), self._session.control
        if not control.is_open:
            await asyncio.sleep(self._config.snapshot_quiet_s)
            return True
        if self._session.send_heartbeat(now=sent_s) is None:
            return False
        self._write()
        try:
            async with asyncio.timeout(self._config.snapshot_quiet_s):
                while not control.returned_since(sent_s):
                    self._heartbeat_came.clear()
                    await self._heartbeat_came.wait()
        except TimeoutError:
            return False
        return True

    async def _fail(self, error: FanoutError) -> None:
        calls_for_audit = self.sampling.fail(error)
        if error.message != self._failure_told:
            self._failure_told = error.message
            self._logger.warning(
                "primary refuses the link's user on another connection, audit follows"
                if calls_for_audit
                else "primary cannot be asked for topics by name",
                error=error.message,
                hint=error.hint or "If the primary accepts no second connection, set sample_topics = 0 for the link",
            )
        if calls_for_audit:
            await self._begin_audit(0)

    async def _begin_audit(self, first: int) -> AuditReport | None:
        """Audit the link, and return the report; None when an audit is under way, or the link is not live any more."""
        try:
            return await self._audit(first)
        except AuditRefused:
            return None

    def _tell_unasked(self) -> None:
        """Log topics that the primary refuses to be asked for by name, once for each Reason Code."""
        for topic, code in self.sampling.unasked.items():
            if code not in self._refusals_told:
                self._refusals_told.add(code)
                self._logger.warning(
                    "primary refuses to be asked for topics by name, they are in no sample",
                    reason=reason_text(code),
                    topic=clean_text(topic),
                    hint="Audits compare them all the same; the primary may limit the levels of a Topic Filter, or the"
                    " number of subscriptions",
                )

    def _tell(self, verdict: Verdict, drawn: Drawn) -> None:
        indexes = {drawn.indexes[topic] for topic in verdict.missing | verdict.changed}
        self._logger.warning(
            "sample of topics differs from the replica, audit follows",
            missing=len(verdict.missing),
            changed=len(verdict.changed),
            asked=len(drawn.held),
            selectors=[drawn.selectors[index].filter for index in sorted(indexes)],
            hint=(
                "Missing topics are deleted at the primary, no longer readable by the link's user, or expired;"
                " different values mean that updates were lost, or that the primary came back with an older store"
            ),
        )
