"""Status of a link, its events for the replication log, and its log lines.

Remembers what these show: the state, the newest error, the results of audits. Finds the reason against a live link.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.certificates import EXPIRING_S
from fanout.chain.readiness_notice import NO_NODE, UNTOLD, ReadinessNotice
from fanout.config import Address, LinkConfig
from fanout.errors import FanoutError, LinkLost
from fanout.link.list_check import ListCheck
from fanout.link.missing_topics import MissingTopics
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import (
    AuditCalled,
    AuditEnded,
    ControlRefused,
    CountDiffers,
    Event,
    HeartbeatReturned,
    HeartbeatsLost,
    MemberUnheard,
    QosLowered,
    ResumedAtQos0,
    SelectorComplete,
    StandingTold,
    StateEntered,
    SystemTopicsShunned,
    TopicsMissing,
    TwinAlarmEnded,
    TwinAlarmRaised,
    ValuesReobtained,
    WentStale,
)
from fanout.link.model.evidence import Evidence
from fanout.link.model.skipped import DeviationTolerated, MessageSkipped, not_held_text
from fanout.link.model.states import LinkState
from fanout.link.model.status import STALE, Clock, LinkSink, LinkStatus, SelectorStatus, causes_of_absence
from fanout.link.session.machine import LinkSession
from fanout.link.session.twin import TWIN_HINT
from fanout.link.snapshot.capability_check import LIMIT_REFUSALS
from fanout.link.snapshot.sampling import Sampling
from fanout.mqtt.breaches import SKIP_TEXTS
from fanout.peer_text import clean_text
from fanout.replica.store import Replica

__all__ = ["Reporter"]

_SKIPS_APART_NS: Final = 1_000_000_000
"""Time between two records of skipped messages, but for what a heartbeat or another state brings."""
_STALL_HINT: Final = (
    "Check the side that the reason names: the primary and the network, or this machine's processor. The link"
    " compares its values when heartbeats come back"
)


class Reporter:
    """Reporter of one link.

    Attributes:
        state: State of the link as of the newest event that was acted on. The session may be ahead by the rest of a
            read.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        session: LinkSession,
        replica: Replica,
        list_check: ListCheck | None,
        sampling: Sampling,
        sink: LinkSink,
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Begin with a link that is down.

        Args:
            config: The link's configuration.
            session: Its session, read only.
            replica: Its replica, read only.
            list_check: Comparison with the primary's list; None without one.
            sampling: Its sampling, read only.
            sink: Receiver of events.
            clock: Clock of the node.
            logger: Logger.
        """
        self.state = LinkState.DOWN
        self._config = config
        self._session = session
        self._replica = replica
        self._list_check = list_check
        self._sampling = sampling
        self._sink = sink
        self._clock = clock
        self._logger = logger
        self._since_ns = clock.now_ns()
        self._notice = NO_NODE
        self._audit: AuditReport | None = None
        """Report of the newest audit that ended; None before the first."""
        self._audit_ended_ns = self._audit_completed_ns = 0
        """When that one, and the newest that did not fail, ended."""
        self._possible_loss = ""
        """Why updates may be missing; empty without a sign of it."""
        self._doubted_since: float | None = None
        """When that, or the readiness notice, began to withhold readiness, monotonic seconds; None without either."""
        self._was_sound = False
        """True if the link had enough evidence and topics when it was last live."""
        self._primary = config.primaries[0]
        """Address in use."""
        self._unanswered = 0
        """Connections begun since the primary answered one; only the first reports its states."""
        self._unconfirmed_told = 0
        """Number of unconfirmed topics that was recorded last."""
        self._missing_told: dict[int, tuple[int, bytes, str]] = {}
        """Position of a selector to what was logged last of its missing topics."""
        self._last_error: FanoutError | None = None
        self._last_error_ns: int | None = None
        self._last_error_over = False
        self._expiries_s: dict[str, int | None] = {}
        """Expiry of the certificates of the newest connection: "client" and "primary", in Unix seconds."""
        self._control_refusal = ""
        """Why heartbeats do not come back, as logged last; empty when they do."""
        self._skips_recorded_ns = 0
        """When skipped messages were last recorded, Unix time in nanoseconds."""
        self._refusals_told: set[tuple[int, str]] = set()
        """Epochs and limits already logged as keeping values out."""

    def status(self, *, primary: Address, missing: MissingTopics, lost: bool) -> LinkStatus:
        """Return the present status.

        Args:
            primary: Address of the primary in use, or to be tried next.
            missing: Announcements of missing topics.
            lost: True if the connection is lost already, or given up, and the state is still that from before.
        """
        session, replica = self._session, self._replica
        lifecycle, content = session.lifecycle, session.pipeline.content
        now = self._clock.monotonic()
        short_by = replica.refused.limits(self._clock.now_ns())
        not_held = replica.refused.skipped(self._clock.now_ns())
        error = _shortage(short_by) if short_by and self.state is LinkState.LIVE else self._last_error
        selectors = tuple(
            SelectorStatus(
                filter=selector.filter,
                topics=replica.count(index),
                digest=replica.digest(index),
                evidence=evidence,
                complete=evidence is not None and not short_by,
                joining=index in lifecycle.joining,
                rejected=dict(content.rejected[index]) if content is not None else {},
                maybe_unreadable=self._maybe_unreadable(index),
            )
            for index, (selector, evidence) in enumerate(zip(self._replica.selectors, lifecycle.evidence, strict=True))
        )
        stale_since = self._stale_since(now, lost=lost)
        stale_s = 0.0 if self.state is LinkState.LIVE else None
        if stale_since is not None:
            stale_s = max(0.0, now - stale_since)
        return LinkStatus(
            name=self._config.name,
            primary=str(primary),
            state=self.state,
            since_ns=self._since_ns,
            epoch=lifecycle.epoch,
            topics=len(replica),
            selectors=selectors,
            evidence=_weakest(lifecycle.evidence) if all(each.complete or each.joining for each in selectors) else None,
            last_error=None if error is None else error.message,
            last_error_hint=None if error is None else error.hint or None,
            last_error_ns=self._last_error_ns if error is self._last_error else None,
            last_error_over=self._last_error_over and error is self._last_error,
            lag_ns=session.control.lag_ns(now),
            items_behind=session.item_lag.items(now, newest=session.pipeline.newest_stamp),
            round_trip_ns=session.control.round_trip_ns(),
            heartbeat_age_s=session.control.age_s(now),
            heartbeat_refusal=session.control.refusal,
            counters=replace(session.counters),
            refused_total=replica.refused_total,
            short_by=short_by,
            payload_bytes=replica.payload_bytes,
            snapshot_seconds=lifecycle.snapshot_seconds,
            snapshot_topics=lifecycle.snapshot_topics,
            not_ready_reason="its connection is lost" if lost else self._find_not_ready_reason(),
            paths_above=self._notice.paths,
            stale_reason=lifecycle.stale_policy.reason,
            stale_left_s=lifecycle.stale_policy.left_s(now),
            stale_s=stale_s,
            serves_stale=(
                stale_since is not None
                and self._may_serve(now - stale_since, complete=all(each.complete for each in selectors))
            ),
            newest_audit=self._audit,
            audit_ended_ns=self._audit_ended_ns,
            audit_completed_ns=self._audit_completed_ns,
            unconfirmed=len(replica.unconfirmed),
            user=self._config.username or "",
            twin=lifecycle.twin.reason,
            counted_outside=session.count.outside,
            sampling=self._sampling.totals,
            missing_pending=len(missing),
            client_certificate_expires_s=self._expiries_s.get("client"),
            primary_certificate_expires_s=self._expiries_s.get("primary"),
            count_difference=(session.count.difference if self._list_check is None else self._list_check.why) or None,
            skipped_total={reason.value: count for reason, count in session.skipped.totals.items()},
            skipped_newest=session.skipped.newest,
            tolerated_total={one.value: count for one, count in session.skipped.tolerated.items()},
            not_held_topics=sum(count for count, _ in not_held.values()),
            not_held_reason="; ".join(
                not_held_text(reason, count, at_least=more) for reason, (count, more) in not_held.items()
            )
            or None,
        )

    def note_changed(self) -> None:
        """Log that the link goes on with another configuration."""
        self._missing_told.clear()
        self._logger.info("link changed", selectors=len(self._replica.selectors), topics=len(self._replica))

    def begin_attempt(self, primary: Address) -> None:
        """Note an attempt to connect.

        Args:
            primary: Address in use.
        """
        self._primary = primary
        self._unanswered += 1

    def note_certificates(self, *, client_expires_s: int | None, primary_expires_s: int | None) -> None:
        """Note the certificates of a connection, and warn of one that expires soon.

        Args:
            client_expires_s: Expiry of the link's client certificate, in Unix seconds; None without one.
            primary_expires_s: Expiry of the primary's certificate; None without TLS.
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
        """Record and log an event where it is of use."""
        match event:
            case StateEntered(state, detail):
                self._record_skipped()
                self._enter(state, detail)
            case SelectorComplete(index, evidence):
                self._complete(index, evidence)
            case AuditCalled(reason):
                self._possible_loss = f"values may be wrong until an audit has ended: {reason}"
                self._note_doubt()
                self._sink.readiness_changed(self._config.name)
                self._logger.warning("audit called for", reason=reason)
            case AuditEnded(report, called):
                self._end_audit(report, called=called)
            case TopicsMissing(index, topics, branch, refusal):
                self._warn_missing(index, topics=topics, branch=branch, refusal=refusal)
            case TwinAlarmRaised(reason):
                self._sink.readiness_changed(self._config.name)
                self._logger.error("another process uses this identity", reason=reason, hint=TWIN_HINT)
            case TwinAlarmEnded():
                self._sink.readiness_changed(self._config.name)
                self._logger.info("no other process uses this identity any more")
            case ValuesReobtained(topics):
                self._logger.warning(
                    "values re-obtained, their messages did not come",
                    topics=topics,
                    hint=(
                        "They were published at QoS 0, or the link subscribes at QoS 0: a primary does not queue"
                        " such messages for an absent session. Publish important messages at QoS 1"
                    ),
                )
            case StandingTold(notice):
                self._take_notice(notice)
            case HeartbeatReturned(round_trip_ns):
                self._record_skipped()
                self._record_event("heartbeat", lag_us=round_trip_ns // 1000)
                if self._control_refusal:
                    self._control_refusal = ""
                    self._logger.info("heartbeats come back")
            case HeartbeatsLost(count):
                self._possible_loss = "updates may be missing until an audit has ended: the primary dropped heartbeats"
                self._note_doubt()
                self._sink.readiness_changed(self._config.name)
                self._logger.warning(
                    "primary dropped heartbeats, updates may be missing until an audit",
                    heartbeats=count,
                    hint="Raise the primary's queue limit for one client: max_queued_messages of Mosquitto,"
                    " mqtt.max_mqueue_len of EMQX, server.queue_messages_max and queue_bytes_max of a fanout node; or"
                    " find out why the link reads slowly",
                )
            case ControlRefused(reason) if self._config.heartbeat_s and reason != self._control_refusal:
                self._control_refusal = reason
                self._logger.warning(
                    "no heartbeats, lag is unknown and a stall is not noticed",
                    reason=reason,
                    hint=LIMIT_REFUSALS.get(reason) or self._control_hint,
                )
            case MemberUnheard(topic, reason):
                self._logger.warning(
                    "heartbeats of a pool member do not come, its values are not compared here",
                    topic=topic,
                    reason=reason,
                    hint=f"Let {self._user} read that topic at the primary; fanout check --acl prints the rights",
                )
            case QosLowered(index, qos):
                selector = self._replica.selectors[index]
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
                    hint=(
                        "It also counts topics that the link's user may not read, and topics that begin with"
                        f" another $; if there are none, audit the link: fanout audit {self._config.name}"
                    ),
                )
            case ResumedAtQos0(indexes):
                self._logger.warning(
                    "session was left in an audit, messages without RETAIN may be lost",
                    selectors=[self._replica.selectors[index].filter for index in indexes],
                    hint="They had QoS 0 while the link was away; retained values are compared now",
                )
            case MessageSkipped(reason, topic, why):
                self._logger.warning(
                    "message skipped, it cannot be replicated",
                    reason=reason.value,
                    topic=topic,
                    detail=why or SKIP_TEXTS[reason],
                )
                if self._clock.now_ns() - self._skips_recorded_ns >= _SKIPS_APART_NS:
                    self._record_skipped()
            case DeviationTolerated(deviation, why):
                self._logger.warning("primary breaks MQTT, tolerated", reason=deviation.value, detail=why)
            case SystemTopicsShunned(left_out):
                self._logger.warning("primary closes the connection unanswered, tried with less", without=left_out)
            case WentStale(reason):
                self._record_event("state", state=STALE, detail=reason)
                self._logger.warning("session lost, serving stale values", reason=reason, grace_s=self._config.grace_s)

    def note_refusals(self) -> None:
        """Log, once per epoch and limit, that a limit of the replica keeps values out."""
        epoch = self._session.lifecycle.epoch
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
        """Record that the replica was removed.

        Args:
            reason: Why it was removed.
            topics: Number of topics that it had.
        """
        epoch = self._session.lifecycle.epoch
        self._sink.event(self._config.name, "tear_down", detail=f"{reason}; topics removed: {topics}", epoch=epoch)
        self._logger.warning("replica torn down", reason=reason, topics=topics, epoch=epoch)

    def note_failure(self, error: FanoutError, *, primary: Address) -> None:
        """Remember why a connection ended; log it unless the attempt before failed in the same way.

        Args:
            error: Why it ended.
            primary: Address that was used.
        """
        repeated = self._last_error is not None and self._last_error.message == error.message
        self._note_error(error)
        if not (repeated and self._unanswered > 1):
            self._logger.warning("link is down", error=error.message, hint=error.hint, primary=str(primary))

    def _note_error(self, error: FanoutError) -> None:
        self._last_error, self._last_error_ns, self._last_error_over = error, self._clock.now_ns(), False

    def _enter(self, state: LinkState, detail: str) -> None:
        if self.state is LinkState.LIVE:
            self._was_sound = self._is_sound
        self.state = state
        self._since_ns = self._clock.now_ns()
        session = self._session
        if state is LinkState.STALLED:
            self._session.counters.stalls_total += 1
            self._note_error(LinkLost(detail, hint=_STALL_HINT))
        if state is LinkState.LIVE:
            self._last_error_over = self._last_error is not None
            self._possible_loss = ""
            self._note_doubt()
            if self._too_weak() is not None:
                self._logger.warning("evidence is too weak to be ready", reason=self._too_weak())
        if state in (LinkState.CONNECTING, LinkState.DOWN):
            if self._unanswered > 1:
                return  # a repeated attempt is not reported as a change of state
        else:
            if self._unanswered > 1:
                self._logger.info("primary answers again", attempts=self._unanswered)
            self._unanswered = 0
        answered = state in (LinkState.SNAPSHOT, LinkState.RESUMING, LinkState.LIVE)
        self._record_event("state", state=state.value, detail=self._tell_primary(detail) if answered else detail)
        self._logger.info(
            "link state", state=state.value, detail=detail, epoch=session.lifecycle.epoch, topics=len(self._replica)
        )

    def _tell_primary(self, reason: str) -> str:
        """Return the detail of a state on an answered connection: the primary, by which reports pair the logs of both.

        Over MQTT 5 each fanout node gives its name in CONNACK; over MQTT 3.1.1 its readiness notice, which may not be
        readable, ends each path with it.
        """
        unnamed = "" if self._config.version == 5 else None
        noticed = (path[-1] for path in self._notice.paths if path)
        told = {"primary": str(self._primary), "primary_node": self._session.peer.node or next(noticed, unnamed)}
        return json.dumps({**told, "reason": reason} if reason else told)

    def _complete(self, index: int, evidence: Evidence) -> None:
        selector, peer = self._replica.selectors[index], self._session.peer
        topics = self._replica.count(index)
        self._sink.event(
            self._config.name,
            "complete",
            evidence=evidence.value,
            selector=selector.filter,
            topics=topics,
            digest=self._replica.digest(index),
            detail=peer.why_unordered if peer.sentinel is None else f"sentinel {peer.sentinel.decode()}",
            epoch=self._session.lifecycle.epoch,
        )
        log = self._logger.info if evidence.is_at_least(Evidence.BARRIER) else self._logger.warning
        log(
            "snapshot complete",
            selector=selector.filter,
            evidence=evidence.value,
            topics=topics,
            detail=peer.why_unordered,
        )
        if self._maybe_unreadable(index) and not selector.min_topics:  # with it the node is not ready, and says why
            self._logger.warning(
                "retained set is empty, or not readable",
                selector=selector.filter,
                primary_count=self._session.count.total,
                hint=f"If the primary has retained values there, let {self._user} read them in its access rules: the"
                f" next audit, or fanout audit {self._config.name}, brings them; set min_topics of the selector if an"
                " empty set is never right",
            )

    def _maybe_unreadable(self, index: int) -> bool:
        """Return whether a selector is empty, and nothing shows that the primary has nothing there.

        A primary that filters by access rules grants the SUBSCRIBE and sends nothing; a fanout node refuses it.
        """
        evidence = self._session.lifecycle.evidence[index]
        return (
            self._session.lifecycle.selectors[index].was_empty
            and not self._replica.count(index)
            and not self._replica.selectors[index].live_only
            and evidence not in (None, Evidence.MANIFEST, Evidence.COUNT)
            and self._session.count.total != 0
        )

    @property
    def _control_hint(self) -> str:
        """Remedy by which heartbeats come back, for an operator."""
        config = self._config
        rights = f"Let the link's user publish and read below {config.control_topic}/ at the primary, every heartbeat_s"
        if config.version == 5 or config.retain_policy == "keep":
            return rights
        return (
            "Set version = 5: with the bridge bit of MQTT 3.1.1, Mosquitto and fanout return no messages of its own"
            f" to a client. {rights}"
        )

    @property
    def _user(self) -> str:
        """The link's user at the primary, for an operator."""
        return "anonymous clients" if self._config.username is None else f"user {self._config.username}"

    def note_unconfirmed(self) -> None:
        """Record that the number of unconfirmed topics has changed, when they begin or end and after each audit."""
        count = len(self._replica.unconfirmed)
        began, ended = count and not self._unconfirmed_told, self._unconfirmed_told and not count
        self._unconfirmed_told = count
        if began or ended:
            self._record_event("unconfirmed", detail=json.dumps({"unconfirmed": count}))
            self._sink.readiness_changed(self._config.name)
        if ended:
            self._missing_told.clear()
            self._logger.info("no topic is unconfirmed any more")

    def _warn_missing(self, index: int, *, topics: int, branch: bytes, refusal: str) -> None:
        told = (topics, branch, refusal)
        if self._missing_told.get(index) == told:
            return  # the next audit found the same
        self._missing_told[index] = told
        name, fields = self._config.name, {}
        if branch:
            fields["branch"] = clean_text(branch.decode())
        if refusal:
            fields["refusal"] = refusal
        self._logger.warning(
            "topics did not come from the primary and are kept",
            selector=self._replica.selectors[index].filter,
            missing=topics,
            causes=causes_of_absence(self._config.username or ""),
            hint=f"See them with: fanout audit {name} --list. Let the link's user read them; or, only if they are"
            f" deleted at the primary: fanout audit {name} --confirm NUMBER",
            **fields,
        )

    def _end_audit(self, report: AuditReport, *, called: str) -> None:
        counters = self._session.counters
        counters.audits_total += 1
        counters.audits_failed_total += bool(report.failure)
        counters.audit_changed_total += report.changed
        counters.audit_removed_total += report.removed
        self._audit, self._audit_ended_ns = report, self._clock.now_ns()
        if not report.failure:
            self._audit_completed_ns = self._audit_ended_ns
        # During an audit updates come at QoS 0, which a primary with a full queue drops just like copies.
        if report.loss:
            self._possible_loss = f"updates may be missing since an audit failed: {report.failure}"
        elif not report.failure and not called:
            self._possible_loss = ""
        self._note_doubt()
        self._record_event("audit", detail=json.dumps(asdict(report)))
        log = self._logger.warning if report.failure or report.kept or report.changed else self._logger.info
        log("audit ended", **asdict(report))
        self._sink.readiness_changed(self._config.name)

    def _take_notice(self, notice: ReadinessNotice) -> None:
        if notice is UNTOLD:  # until the notice comes the paths stay, so that a cycle is still recognised
            notice = replace(notice, paths=self._notice.paths)
        changed, self._notice = notice != self._notice, notice
        self._note_doubt()
        if changed:
            self._sink.readiness_changed(self._config.name)
            self._logger.info("primary told how it stands", reason=notice.reason, hops=notice.hops)

    def _note_doubt(self) -> None:
        """Note since when the primary, or a sign of loss, says that the values of the live link may be behind."""
        if not (self._notice.reason or self._possible_loss):
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = self._clock.monotonic()

    @property
    def _is_sound(self) -> bool:
        """True if the link has enough evidence and topics."""
        return self._too_weak() is None and self._too_few() is None

    def _stale_since(self, now: float, *, lost: bool) -> float | None:
        """Return when the values were last known to be current; None while they are, and without any that were."""
        since = self._session.lifecycle.stale_policy.since
        if since is None and self.state is LinkState.LIVE:
            return self._session.control.current_s(now) if lost else self._doubted_since
        return since

    def _may_serve(self, age_s: float, *, complete: bool) -> bool:
        """Return whether stale values of this age may be offered."""
        stale_policy = self._session.lifecycle.stale_policy
        is_sound = self._is_sound if self.state is LinkState.LIVE else self._was_sound
        return is_sound and (stale_policy.reason is not None or (complete and stale_policy.offers(age_s)))

    def _find_not_ready_reason(self) -> str | None:
        if self._notice.reason:
            return f"its primary is not ready: {self._notice.reason}"
        if self._session.lifecycle.twin.reason:
            return self._session.lifecycle.twin.reason
        if self._replica.unconfirmed and self._config.on_doubt == "not_ready":
            # Without the number: every change of this text is sent to the nodes below.
            causes = causes_of_absence(self._config.username or "")
            return f"topics are unconfirmed, they did not come from the primary: {causes}"
        return self._possible_loss or self._too_weak() or self._too_few() or self._joining()

    def _joining(self) -> str | None:
        """Return that selectors join, where that counts, or where no other is proved; None when none does."""
        lifecycle = self._session.lifecycle
        joining = lifecycle.joining
        if not joining or (self._config.on_joining == "serve" and any(lifecycle.evidence)):
            return None
        return f"not proved yet: {', '.join(self._replica.selectors[index].filter for index in joining)}"

    def _too_weak(self) -> str | None:
        """Return why the evidence of a selector is weaker than configured; None when none is."""
        session, wanted = self._session, Evidence(self._config.min_evidence)
        for index in session.lifecycle.weak_selectors():
            selector, evidence = self._replica.selectors[index], session.lifecycle.evidence[index]
            why = session.peer.why_unordered
            if wanted is Evidence.COUNT:
                why = session.count.why if self._list_check is None else self._list_check.why
                why = why or "waiting for the primary's figure"
            if not why and evidence is Evidence.BARRIER:
                refusal = session.control.refusal
                why = f"the primary does not let the link publish below {self._config.control_topic}"
                if refusal in LIMIT_REFUSALS:
                    why = f"{refusal}, so no marker comes back"
            text = f"the evidence for {selector.filter} is {evidence}, weaker than min_evidence = {wanted}"
            return f"{text}: {why}" if why else text
        return None

    def _too_few(self) -> str | None:
        """Return which selector has fewer topics than configured; None when none has."""
        for index, selector in enumerate(self._replica.selectors):
            if self._replica.count(index) < selector.min_topics:
                return (
                    f"{selector.filter} has {'fewer' if self._replica.count(index) else 'no'} topics, and min_topics ="
                    f" {selector.min_topics}: let {self._user} read all of it in the primary's access rules, or lower"
                    " min_topics"
                )
        return None

    def _record_skipped(self) -> None:
        """Record what was skipped since the last time, one event for each reason."""
        for reason, tally in self._session.skipped.take_unrecorded().items():
            self._skips_recorded_ns = self._clock.now_ns()
            told = {"reason": reason.value, "messages": tally.messages, "topics": list(tally.topics)}
            times = {"first_us": tally.first_ns // 1000, "last_us": tally.last_ns // 1000}
            self._record_event("skipped", detail=json.dumps(told | times, ensure_ascii=False))

    def _record_event(self, event: str, *, state: str = "", lag_us: int | None = None, detail: str = "") -> None:
        self._sink.event(
            self._config.name,
            event,
            state=state,
            topics=len(self._replica),
            digest=self._replica.digest(),
            lag_us=lag_us,
            detail=detail,
            epoch=self._session.lifecycle.epoch,
        )


def _shortage(limits: tuple[str, ...]) -> FanoutError:
    """Return the error for limits that keep values out."""
    keys = " and ".join(limits)
    return FanoutError(
        f"over {keys}: retained values are delivered but not held",
        hint=f"Raise {keys}; or wait until their topics are cleared, expire, or get values that fit",
    )


def _weakest(evidence: list[Evidence | None]) -> Evidence | None:
    known = [each for each in evidence if each is not None]
    if len(known) < len(evidence):
        return None
    return next(each for each in reversed(Evidence) if each in known)
