"""How a link is, as it tells it: in the replication log, in log lines, and in its status.

Owns what is shown (the state, why the link is not ready, what went wrong last, what audits found) and which of it is
worth a line. It must not know connections or timers, nor decide anything (`fanout.link.link`,
`fanout.link.session.lifecycle`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from structlog.typing import FilteringBoundLogger

from fanout.certificates import EXPIRING_S
from fanout.chain.readiness_notice import NO_NODE, UNTOLD, ReadinessNotice
from fanout.config import Address, LinkConfig
from fanout.errors import FanoutError
from fanout.link.list_check import ListCheck
from fanout.link.missing_topics import MissingTopics
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import (
    AuditEnded,
    ControlRefused,
    CountDiffers,
    Event,
    HeartbeatReturned,
    HeartbeatsLost,
    QosLowered,
    ResumedAtQos0,
    SelectorComplete,
    StandingTold,
    StateEntered,
    SystemTopicsShunned,
    WentStale,
)
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.model.status import STALE, AuditTotals, Clock, LinkSink, LinkStatus, SelectorStatus
from fanout.link.session.machine import LinkSession
from fanout.replica.store import Replica

__all__ = ["Reporter"]


class Reporter:
    """The account that one link gives of itself.

    Attributes:
        state: Where the link is. What is shown is what was acted on, in order: the session may be ahead by the rest of
            a read.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        session: LinkSession,
        replica: Replica,
        comparison: ListCheck | None,
        sink: LinkSink,
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Begin with a link that is down.

        Args:
            config: The link's configuration.
            session: Its session, read only.
            replica: Its replica, read only.
            comparison: The comparison with the primary's list; None without one.
            sink: Where events go.
            clock: The time.
            logger: Takes log lines.
        """
        self.state = LinkState.DOWN
        self._config = config
        self._session = session
        self._replica = replica
        self._comparison = comparison
        self._sink = sink
        self._clock = clock
        self._logger = logger
        self._since_ns = clock.now_ns()
        self._notice = NO_NODE
        self._audits = AuditTotals()
        self._doubt = ""
        """Why updates may be missing; empty when nothing says so."""
        self._unanswered = 0
        """Connections begun since the primary answered one; the first tells its states, the others are repeats."""
        self._last_error: FanoutError | None = None
        self._expiries_s: dict[str, int | None] = {}
        """When the certificates of the newest connection with TLS expire: "client" and "primary", in Unix seconds."""
        self._control_refusal = ""
        """Why heartbeats do not come back, as it was logged; empty when they do."""
        self._refusals_told: set[tuple[int, str]] = set()
        """Of the epoch: limits of which it was told that they keep values out."""

    def status(self, *, primary: Address, missing: MissingTopics) -> LinkStatus:
        """Return how the link is at the moment.

        Args:
            primary: The primary's address in use, or to be tried next.
            missing: What was announced as missing there.
        """
        session, replica = self._session, self._replica
        life, packet_router, content = session.life, session.packet_router, session.pipeline.content
        now = self._clock.monotonic()
        short_by = replica.refused.limits(self._clock.now_ns())
        error = _shortage(short_by) if short_by and self.state is LinkState.LIVE else self._last_error
        selectors = tuple(
            SelectorStatus(
                filter=selector.filter,
                topics=replica.count(index),
                digest=replica.digest(index),
                evidence=evidence,
                complete=evidence is not None and not short_by,
                unfit=dict(content.unfit[index]) if content is not None else {},
            )
            for index, (selector, evidence) in enumerate(zip(self._config.selectors, life.evidence, strict=True))
        )
        return LinkStatus(
            name=self._config.name,
            primary=str(primary),
            state=self.state,
            since_ns=self._since_ns,
            epoch=life.epoch,
            epochs_total=life.epochs_total,
            topics=len(replica),
            selectors=selectors,
            evidence=_weakest(life.evidence) if all(each.complete for each in selectors) else None,
            last_error=None if error is None else error.message,
            last_error_hint=None if error is None else error.hint or None,
            lag_ns=session.control.lag_ns(now),
            items_behind=session.backlog.items(now, newest=session.pipeline.newest_stamp),
            round_trip_ns=session.control.round_trip_ns(),
            heartbeat_age_s=session.control.age_s(now),
            heartbeat_refusal=session.control.refusal,
            heartbeats_lost_total=packet_router.heartbeats_lost_total,
            received_total=packet_router.received_total,
            outside_total=packet_router.outside_total,
            overtaken_total=session.pipeline.overtaken_total,
            truncated_total=life.truncated_total,
            refused_total=replica.refused_total,
            short_by=short_by,
            payload_bytes=replica.payload_bytes,
            reconnects_total=max(0, packet_router.connections_total - 1),
            snapshot_seconds=life.snapshot_seconds,
            snapshot_topics=life.snapshot_topics,
            withheld=self._withheld(),
            paths_above=self._notice.paths,
            stale_reason=life.stale_policy.reason,
            stale_left_s=life.stale_policy.left_s(now),
            audits=self._audits,
            missing_announced_total=missing.announced_total,
            missing_suppressed_total=missing.suppressed_total,
            missing_dropped_total=missing.dropped_total,
            missing_pending=len(missing),
            client_certificate_expires_s=self._expiries_s.get("client"),
            primary_certificate_expires_s=self._expiries_s.get("primary"),
            count_difference=(session.count.difference if self._comparison is None else self._comparison.why) or None,
        )

    def begin_attempt(self) -> None:
        """Note that a Network Connection is begun."""
        self._unanswered += 1

    def note_certificates(self, *, client_expires_s: int | None, primary_expires_s: int | None) -> None:
        """Note the certificates of a connection, and warn of one that expires soon.

        Args:
            client_expires_s: When the one that the link showed expires, in Unix seconds; None without one.
            primary_expires_s: When the primary's does; None without TLS.
        """
        self._expiries_s = {"client": client_expires_s, "primary": primary_expires_s}
        for whose, at_s in self._expiries_s.items():
            left_s = None if at_s is None else at_s - self._clock.now_ns() // 1_000_000_000
            if left_s is not None and left_s < EXPIRING_S:
                self._logger.warning(
                    "certificate expires soon",
                    certificate=whose,
                    days=left_s // 86_400,
                    hint="Renew it; the link reads its own files again at each connection",
                )

    def take(self, event: Event) -> None:
        """Tell what has happened, where that is worth it."""
        match event:
            case StateEntered(state, detail):
                self._enter(state, detail)
            case SelectorComplete(index, evidence):
                self._complete(index, evidence)
            case AuditEnded(report):
                self._end_audit(report)
            case StandingTold(standing):
                self._take_standing(standing)
            case HeartbeatReturned(round_trip_ns):
                self._tell("heartbeat", lag_us=round_trip_ns // 1000)
                if self._control_refusal:
                    self._control_refusal = ""
                    self._logger.info("heartbeats come back")
            case HeartbeatsLost(count):
                self._doubt = "updates may be missing until an audit has ended: the primary dropped heartbeats"
                self._sink.standing_changed()
                self._logger.warning(
                    "primary dropped heartbeats, updates may be missing until an audit",
                    heartbeats=count,
                    hint="Raise the primary's limit for what waits for one client: max_queued_messages of Mosquitto,"
                    " mqtt.max_mqueue_len of EMQX, server.queue_messages_max and queue_bytes_max of a fanout node; or"
                    " find out why the link reads slowly",
                )
            case ControlRefused(reason) if self._config.heartbeat_s and reason != self._control_refusal:
                self._control_refusal = reason
                self._logger.warning(
                    "no heartbeats, lag is unknown and a stall is not noticed",
                    reason=reason,
                    hint=f"Let the link's user publish and read below {self._config.control_topic}/ at the primary,"
                    " every heartbeat_s",
                )
            case QosLowered(index, qos):
                selector = self._config.selectors[index]
                self._logger.warning(
                    "primary grants a lower QoS, updates may be lost on the way",
                    selector=selector.filter,
                    qos=selector.qos,
                    granted=qos,
                    hint="Raise the Maximum QoS of the primary, or lower qos of the selector",
                )
            case CountDiffers(difference):
                self._logger.warning(
                    "primary counts other than what is held",
                    difference=difference,
                    hint="It counts what the link's user may not read, and topics with another $ in front, too; if"
                    f" there are none, audit the link: fanout audit {self._config.name}",
                )
            case ResumedAtQos0(indexes):
                self._logger.warning(
                    "session was left in an audit, messages without RETAIN may be lost",
                    selectors=[self._config.selectors[index].filter for index in indexes],
                    hint="They had QoS 0 while the link was away; retained values are compared now",
                )
            case SystemTopicsShunned():
                self._logger.warning("primary closes the connection at $SYS, not asked there any more")
            case WentStale(reason):
                self._tell("state", state=STALE, detail=reason)
                self._logger.warning("session lost, serving stale values", reason=reason, grace_s=self._config.grace_s)

    def note_refusals(self) -> None:
        """Tell, once in an epoch of each, that a limit of the replica keeps values out."""
        epoch = self._session.life.epoch
        for limit in self._replica.refused.limits(self._clock.now_ns()):
            if (epoch, limit) not in self._refusals_told:
                self._refusals_told = {told for told in self._refusals_told if told[0] == epoch} | {(epoch, limit)}
                self._logger.error(
                    "a limit keeps retained values out",
                    limit=limit,
                    topics=len(self._replica),
                    hint=_shortage((limit,)).hint,
                )

    def note_torn_down(self, reason: str, *, topics: int) -> None:
        """Tell that the replica was removed.

        Args:
            reason: Why.
            topics: How many it had.
        """
        epoch = self._session.life.epoch
        self._sink.event(self._config.name, "tear_down", detail=f"{reason}; {topics} topics were removed", epoch=epoch)
        self._logger.warning("replica torn down", reason=reason, topics=topics, epoch=epoch)

    def note_failure(self, error: FanoutError, *, primary: Address) -> None:
        """Remember why a connection ended, and log it unless the attempt before ended with the same.

        Args:
            error: Why.
            primary: The address that was used.
        """
        repeated = self._last_error is not None and self._last_error.message == error.message
        self._last_error = error
        if not (repeated and self._unanswered > 1):
            self._logger.warning("link is down", error=error.message, hint=error.hint, primary=str(primary))

    def _enter(self, state: LinkState, detail: str) -> None:
        self.state = state
        self._since_ns = self._clock.now_ns()
        session = self._session
        if state is LinkState.LIVE:
            self._doubt = ""
            if self._too_weak() is not None:
                self._logger.warning("evidence is too weak to be ready", reason=self._too_weak())
        if state in (LinkState.CONNECTING, LinkState.DOWN):
            if self._unanswered > 1:
                return  # a repeated attempt is no change of state
        else:
            if self._unanswered > 1:
                self._logger.info("primary answers again", attempts=self._unanswered)
            self._unanswered = 0
        told = detail
        if state in (LinkState.SNAPSHOT, LinkState.RESUMING) and session.primary.node is not None:
            told = json.dumps({"primary_node": session.primary.node})  # reports pair the logs of both by it
        self._tell("state", state=state.value, detail=told)
        self._logger.info(
            "link state", state=state.value, detail=detail, epoch=session.life.epoch, topics=len(self._replica)
        )

    def _complete(self, index: int, evidence: Evidence) -> None:
        selector, primary = self._config.selectors[index], self._session.primary
        topics = self._replica.count(index)
        self._sink.event(
            self._config.name,
            "complete",
            evidence=evidence.value,
            selector=selector.filter,
            topics=topics,
            digest=self._replica.digest(index),
            detail=primary.why_unordered if primary.fence is None else f"fence {primary.fence.decode()}",
            epoch=self._session.life.epoch,
        )
        log = self._logger.info if evidence.is_at_least(Evidence.BARRIER) else self._logger.warning
        log(
            "snapshot complete",
            selector=selector.filter,
            evidence=evidence.value,
            topics=topics,
            detail=primary.why_unordered,
        )

    def _end_audit(self, report: AuditReport) -> None:
        self._audits = self._audits.with_report(report, now_ns=self._clock.now_ns())
        # While it ran, updates came at QoS 0, which a primary drops when it is cut short, as it does with copies.
        if report.loss:
            self._doubt = f"updates may be missing since an audit failed: {report.failure}"
        elif not report.failure:
            self._doubt = ""
        self._tell("audit", detail=json.dumps(asdict(report)))
        log = self._logger.warning if report.failure or report.kept or report.changed else self._logger.info
        log("audit ended", **asdict(report))
        self._sink.standing_changed()

    def _take_standing(self, standing: ReadinessNotice) -> None:
        if standing is UNTOLD:  # until the document comes, the paths stay as they were: a cycle is still one
            standing = replace(standing, paths=self._notice.paths)
        changed, self._notice = standing != self._notice, standing
        if changed:
            self._sink.standing_changed()
            self._logger.info("primary told how it stands", reason=standing.reason, hops=standing.hops)

    def _withheld(self) -> str | None:
        if self._notice.reason:
            return f"its primary is not ready: {self._notice.reason}"
        return self._doubt or self._too_weak()

    def _too_weak(self) -> str | None:
        """Return which selector's evidence is weaker than the configuration asks for."""
        session, wanted = self._session, Evidence(self._config.min_evidence)
        for selector, evidence in zip(self._config.selectors, session.life.evidence, strict=True):
            if evidence is None or evidence.is_at_least(wanted) or selector.live_only:
                continue  # with live_only there is no retained set to prove
            why = session.primary.why_unordered
            if wanted is Evidence.COUNT:
                why = session.count.why if self._comparison is None else self._comparison.why
                why = why or "the primary's figure is awaited"
            if not why and evidence is Evidence.BARRIER:
                why = f"the primary does not let the link publish below {self._config.control_topic}"
            text = f"the evidence for {selector.filter} is {evidence}, weaker than min_evidence = {wanted}"
            return f"{text}: {why}" if why else text
        return None

    def _tell(self, event: str, *, state: str = "", lag_us: int | None = None, detail: str = "") -> None:
        self._sink.event(
            self._config.name,
            event,
            state=state,
            topics=len(self._replica),
            digest=self._replica.digest(),
            lag_us=lag_us,
            detail=detail,
            epoch=self._session.life.epoch,
        )


def _shortage(limits: tuple[str, ...]) -> FanoutError:
    """Return what the status says of limits that keep values out."""
    keys = " and ".join(limits)
    return FanoutError(
        f"over {keys}: retained values are delivered but not held",
        hint=f"Raise {keys}; or it ends by itself when their topics are cleared, expire, or get values that fit",
    )


def _weakest(evidence: list[Evidence | None]) -> Evidence | None:
    known = [each for each in evidence if each is not None]
    if len(known) < len(evidence):
        return None
    return next(each for each in reversed(Evidence) if each in known)
