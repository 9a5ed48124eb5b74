"""Sampling of a live link (core): which topics are requested by name, what their answers show, and when to rest.

A sample is a few topics of the replica. The primary is asked for them on a connection of its own
(`fanout.link.exact_names`), so its answer has no place among the updates of the link. A topic that is absent, or has
another value, is therefore only in doubt. It counts once a heartbeat has come back that was sent after the answer, and
the replica still has the value it had: then no update for it was under way.

A refusal is in doubt as well if it may mean that the user lost a right. Other refusals say that the topic cannot be
requested by name, as where it is deeper than the primary allows. Such a topic is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fanout.config import LinkConfig
from fanout.errors import FanoutError, PrimaryRefused
from fanout.link.ingest.pipeline import IngestPipeline
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.sampling_totals import SamplingTotals
from fanout.link.protocol.handshake import reason_text
from fanout.link.protocol.name_request import NAMES_MAX, NamedAnswer
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.topic_draw import TopicDraw
from fanout.replica.update import EXPIRES_NS, PAYLOAD, PROPERTIES, RECEIVED_NS, TOPIC, Update
from fanout.selection import Selector

__all__ = ["COST_FACTOR", "REST_MAX_S", "REST_MIN_S", "Drawn", "Sampling", "Verdict", "why_never"]

COST_FACTOR = 10
"""Least ratio of the pause between two samples to the duration of the former sample, or of its audit."""
REST_MIN_S = 30.0
"""Longest rest after an audit that found something, and first rest after one that found nothing, which doubles."""
REST_MAX_S = 3_600.0
"""Longest rest."""
_FAILED_REST_MAX_S = 300.0
_LOSSES_MAX = 2
"""Number of connections of the link in a row, lost during a sample, after which the rest is the longest."""
_USER_REFUSED = (ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED, ReasonCode.BANNED)
_EXPIRY_SLACK_NS = 10_000_000_000
"""A value that expires so soon is not drawn: it may be gone at the primary before the answer."""


def why_never(config: LinkConfig) -> str:
    """Return why a link with this configuration takes no samples; empty when it does."""
    if not config.sample_topics:
        return "sample_topics is 0"
    if not config.heartbeat_s:
        return "heartbeat_s is 0"
    if config.version == 4 and config.retain_policy == "keep":
        return 'retain_policy = "keep" holds values that the primary does not retain'
    if all(selector.live_only for selector in config.selectors):
        return "every selector is live_only"
    if config.max_age_s:
        return "max_age_s lets heartbeats overtake values, so values of a sample cannot be compared"
    return ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Topics of one sample."""

    held: Mapping[str, Update]
    """Name of each topic at the primary, with the value that the replica has."""
    indexes: Mapping[str, int]
    """Position of the selector of each topic."""
    selectors: Sequence[Selector]
    """Selectors of the link when they were drawn."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Topics in which the primary's answer differs from the replica."""

    missing: frozenset[str] = frozenset()
    """Topics that the primary did not send, or refused, apparently for a missing right."""
    changed: frozenset[str] = frozenset()
    """Topics with another value from the primary."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed)

    def first_index(self, drawn: Drawn) -> int:
        """Return the position of the first selector that is concerned."""
        return min(drawn.indexes[topic] for topic in self.missing | self.changed)


class Sampling:
    """Sampling of one link, over all its Network Connections.

    Attributes:
        totals: Figures for the status.
        unasked: Reason Code of each topic of the newest sample that the primary refuses to be asked for by name.
    """

    def __init__(self, config: LinkConfig, *, replica: Replica, pipeline: IngestPipeline, seed: int) -> None:
        """Begin without a sample.

        Args:
            config: The link's configuration.
            replica: The link's replica, read only.
            pipeline: Its way of updates, which knows how stamps are split off.
            seed: A number that differs between processes.
        """
        self.totals = SamplingTotals(off=why_never(config))
        self.unasked: Mapping[str, int] = {}
        self._config = config
        self._replica = replica
        self._pipeline = pipeline
        self._seed = seed
        self._draws: list[TopicDraw] = []
        self._turn = 0
        """Position of the draw with which the next sample begins, where not all fit into one."""
        self.reselect()
        self._in_vain = 0
        """Number of audits in a row that samples called for and that found nothing."""
        self._unconfirmed = 0
        """Number of unconfirmed topics when the newest sample was judged."""
        self._unspecified: frozenset[str] = frozenset()
        """Topics of the newest sample that the primary refused without a reason."""
        self._trusts_unspecified = True
        """True if such a refusal may mean the want of a right; an audit that found all shows that it does not."""
        self._failures = 0
        """Number of samples in a row that failed, or with every topic refused by the primary."""
        self._losses = 0
        """Number of connections of the link in a row that were lost during a sample."""
        self._rest_s = 0.0
        self._took_s = 0.0

    def reselect(self) -> None:
        """Go on with the selectors that the replica has now."""
        self._draws = [
            TopicDraw(self._replica.root_of(index), seed=self._seed + index)
            for index, selector in enumerate(self._replica.selectors)
            if not selector.live_only
        ]
        self._turn = 0

    @property
    def off_for_good(self) -> bool:
        """True if the configuration excludes samples."""
        return bool(why_never(self._config))

    @property
    def pause_s(self) -> float:
        """Seconds until the next sample."""
        return max(self._config.heartbeat_s, COST_FACTOR * self._took_s, self._rest_s)

    def draw(self, *, now_ns: int) -> Drawn:
        """Return the topics of the next sample; none when the replica has none that can be drawn.

        Args:
            now_ns: Unix time in nanoseconds.
        """
        draws, selectors = self._draws, self._replica.selectors
        if not draws:  # every selector is live_only, since a reload
            return Drawn({}, {}, selectors)
        count = max(1, min(self._config.sample_topics, NAMES_MAX // len(draws)))
        some = [draws[(self._turn + number) % len(draws)] for number in range(min(len(draws), NAMES_MAX // count))]
        self._turn = (self._turn + len(some)) % len(draws)
        topics = set[bytes]().union(*(each.draw(self._replica.topics, count) for each in some))
        held: dict[str, Update] = {}
        indexes: dict[str, int] = {}
        unconfirmed = self._replica.unconfirmed  # audits look for these by themselves
        for value in self._replica.get_many(sorted(topics)):
            index = self._replica.index_of(value[TOPIC])
            soon = 0 < value[EXPIRES_NS] <= now_ns + _EXPIRY_SLACK_NS
            if index < 0 or soon or value[TOPIC] in unconfirmed or selectors[index].live_only:
                continue
            name = value[TOPIC].removeprefix(selectors[index].prefix.encode()).decode()
            held[name] = value
            indexes[name] = index
        return Drawn(held, indexes, selectors)

    def compare(self, drawn: Drawn, answer: NamedAnswer, *, now_ns: int, took_s: float) -> Verdict:
        """Return the topics that are in doubt.

        Args:
            drawn: The sample.
            answer: The primary's answer to it.
            now_ns: Unix time in nanoseconds.
            took_s: Seconds that the primary took to answer.
        """
        self._took_s = took_s
        self._unspecified = frozenset(
            name for name, code in answer.refused.items() if code == ReasonCode.UNSPECIFIED_ERROR
        )
        denied = answer.denied if self._trusts_unspecified else answer.denied - self._unspecified
        self.unasked = {name: code for name, code in answer.refused.items() if name not in denied}
        self._failures = self._failures + 1 if len(self.unasked) == len(drawn.held) else 0
        totals = self.totals
        self.totals = replace(
            totals,
            samples_total=totals.samples_total + 1,
            topics_total=totals.topics_total + len(drawn.held) - len(self.unasked),
            last_ns=now_ns,
        )
        changed = (name for name, row in answer.values.items() if not self._equals(drawn.held[name], row))
        return Verdict(missing=answer.absent | denied, changed=frozenset(changed))

    def confirm(self, drawn: Drawn, doubtful: Verdict) -> Verdict:
        """Return the topics whose value in the replica is the same as when they were drawn.

        Call it after every update that the primary sent before its answer has come.
        """
        names = doubtful.missing | doubtful.changed
        now = {
            value[TOPIC]: value for value in self._replica.get_many([drawn.held[name][TOPIC] for name in sorted(names)])
        }
        same = {name for name in names if _is_same(drawn.held[name], now.get(drawn.held[name][TOPIC]))}
        return Verdict(missing=doubtful.missing & same, changed=doubtful.changed & same)

    def take(self, verdict: Verdict) -> None:
        """Note what a sample showed; after a difference, `note_audit` follows."""
        self._unconfirmed = len(self._replica.unconfirmed)
        if verdict:
            totals = self.totals
            self.totals = replace(
                totals,
                missing_total=totals.missing_total + len(verdict.missing),
                changed_total=totals.changed_total + len(verdict.changed),
                audits_total=totals.audits_total + 1,
            )
            if verdict.changed or not verdict.missing <= self._unspecified:
                self._unspecified = frozenset()
        elif self._failures:
            code = next(iter(self.unasked.values()))
            self._rest(self._failed_rest_s, f"the primary refuses to be asked for topics by name: {reason_text(code)}")
        else:
            self._in_vain = 0
            self._rest(0.0, "")

    def fail(self, error: FanoutError) -> bool:
        """Note that a sample failed, and return whether that calls for an audit.

        It does when the primary has answered samples before and now refuses the user or the password.
        """
        totals = self.totals
        refused = (
            isinstance(error, PrimaryRefused)
            and error.reason_code in _USER_REFUSED
            and not self._failures
            and totals.samples_total > 0
        )
        self._failures += 1
        self.totals = replace(
            totals, failed_total=totals.failed_total + 1, audits_total=totals.audits_total + bool(refused)
        )
        self._rest(self._failed_rest_s, f"the primary could not be asked by name: {error.message}")
        return refused

    def note_audit(self, report: AuditReport | None) -> None:
        """Rest after the audit that a sample called for.

        Args:
            report: Its report; None when none could begin.
        """
        if report is None or report.failure:
            self._rest(REST_MIN_S, "an audit that a sample called for could not be made")
            return
        if report.changed or report.removed or report.kept > self._unconfirmed:
            self._in_vain = 0
            self._trusts_unspecified = True
            self._rest(
                min(COST_FACTOR * report.seconds, REST_MIN_S), "an audit has just ended that a sample called for"
            )
            return
        if self._unspecified:
            self._trusts_unspecified = False
        rest_s = min(REST_MIN_S * 2.0**self._in_vain, REST_MAX_S)
        self._in_vain += 1
        self._rest(
            rest_s,
            f"resting {rest_s:.0f} s: topics of a sample differed, and the audit after it found them all; access "
            "rules of the primary may depend on the Client Identifier",
        )

    def note_link_lost(self) -> None:
        """Note that the link's own connection was lost during a sample."""
        self._losses += 1
        if self._losses >= _LOSSES_MAX:
            why = "the link's connection was lost each time the primary was asked by name on another one"
            self._rest(REST_MAX_S, f"resting {REST_MAX_S:.0f} s: {why}; it may allow only one connection of a user")

    def note_link_kept(self) -> None:
        """Note that the link's connection has lasted since the former sample."""
        self._losses = 0

    @property
    def _failed_rest_s(self) -> float:
        return min(self._config.heartbeat_s * 2.0**self._failures, _FAILED_REST_MAX_S)

    def _rest(self, seconds: float, why: str) -> None:
        self._rest_s = seconds
        self.totals = replace(self.totals, off=why)

    def _equals(self, held: Update, row: PublishRow) -> bool:
        _, payload, _, _, properties, _, user_at = row
        split_stamp = self._pipeline.converter.split_stamp
        if split_stamp is not None and properties:
            properties, _ = split_stamp(properties, user_at)
        return (held[PAYLOAD], held[PROPERTIES]) == (payload, properties)


def _is_same(held: Update, now: Update | None) -> bool:
    return now is not None and _identity(held) == _identity(now)


def _identity(value: Update) -> Iterable[object]:
    return value[PAYLOAD], value[PROPERTIES], value[RECEIVED_NS]
