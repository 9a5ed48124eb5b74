"""Runner of a probe: trials with one set of settings after another, until one has proof; then the clean-up.

Owns the time limit, the retained messages of the probe, and that nothing stays at the primary, however it ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from fanout.config import LinkConfig
from fanout.errors import FanoutError, LinkLost, PrimaryRefused, PrimaryUnreachable
from fanout.link.exact_names import ask_by_name
from fanout.peer_text import clean_text
from fanout.probe.publisher import Publisher, PublishRefused
from fanout.probe.results import Outcome, ProbeReport, Trial
from fanout.probe.settings import PATIENT_QUIET_S, Settings, settings_for
from fanout.probe.trial import run_trial
from fanout.selection import Selector, overlap

__all__ = ["SET_SIZE", "probe"]

SET_SIZE: Final = 5_003
"""Default number of retained messages; it is no number that limits are set to (`fanout.link.snapshot.narrowing`)."""
_LOAD_SHARE: Final = 1 / 3
"""Share of the time after which no further retained messages are published."""
_PIECE: Final = 500
_FIRST: Final = 3
"""Number of messages that are published first, to see whether the user may."""
_ANSWER_S: Final = 20.0
_ANSWER_QUIET_S: Final = 2.0
_CLEAN_UP_S: Final = 20.0
"""Time limit of the clean-up, apart from that of the trials."""
_VERSION_TOPIC: Final = "$SYS/broker/version"
_IDENTITY_TEXT_MAX: Final = 80
_UNSUPPORTED: Final = (0x01, 0x84)
"""Answers to CONNECT that mean: not this protocol version (MQTT 3.1.1 and MQTT 5)."""


async def probe(
    link: LinkConfig,
    *,
    versions: Sequence[int],
    prefix: str,
    set_size: int,
    timeout_s: float,
    on_check: Callable[[str], None] = lambda _: None,
    node_id: str | None = None,
) -> ProbeReport:
    """Try a link at a primary.

    Args:
        link: The link that is wanted: address, user, certificates and selectors.
        versions: Protocol versions, 5 and 4, in the order in which they are tried.
        prefix: Beginning of the topics of the probe, without a slash at the end.
        set_size: Retained messages that are published below it; 0 for none.
        timeout_s: Seconds for all trials together.
        on_check: Called with the name of each check before it begins.
        node_id: Node whose control topic is used, with the rights of that node's link; None for one of the probe.

    Raises:
        FanoutError: The primary cannot be reached, or it refuses the connection, with every version.
    """
    probing = _Probe(link, prefix=prefix, set_size=set_size, timeout_s=timeout_s, on_check=on_check, node_id=node_id)
    try:
        complete = await probing.run(versions)
    finally:
        on_check("cleaning up")
        left = await probing.clean_up()
    return ProbeReport(str(link.primaries[0]), probing.server, tuple(probing.trials), complete, left)


class _Probe:
    """One probe, while it runs."""

    def __init__(
        self,
        link: LinkConfig,
        *,
        prefix: str,
        set_size: int,
        timeout_s: float,
        on_check: Callable[[str], None],
        node_id: str | None,
    ) -> None:
        nonce = secrets.token_hex(3)
        self.trials: list[Trial] = []
        self.server = ""
        self._node_id = f"probe-{nonce}"
        self._tried_id = node_id or self._node_id
        self._link = replace(link, client_id=f"fanout-{self._node_id}")
        self._root = f"{prefix}/{nonce}"
        self._set_size = set_size
        self._timeout_s = timeout_s
        self._on_check = on_check
        self._publisher: Publisher | None = None
        self._loaded = 0
        self._not_loaded = "" if set_size else "--set-size is 0"
        """Why there is no retained message of this probe; empty while there may be."""

    async def run(self, versions: Sequence[int]) -> bool:
        """Make the trials; return whether the time was enough.

        Raises:
            FanoutError: No version is accepted.
        """
        errors: list[FanoutError] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                for version in versions:
                    self._on_check(f"{Settings(version).text}: connecting")
                    publisher = Publisher(self._link, node_id=self._node_id, version=version)
                    try:
                        await publisher.connect()
                    except FanoutError as error:
                        errors.append(error)
                        trial = Trial(Settings(version), reason=error.message, hint=error.hint, complete=True)
                        trial.add("connection", False, error.message)
                        self.trials.append(trial)
                        continue
                    if self._publisher is None:
                        self._publisher = publisher
                        await self._identify(version)
                        await self._load(publisher, version)
                    for settings in settings_for(version):
                        if await self._try(settings):
                            return True
        except TimeoutError:
            if not self.trials:
                reason = "the time was up before a link was tried"
                self.trials.append(Trial(Settings(versions[len(errors)]), reason=reason))
            return False
        if len(errors) == len(versions):
            raise self._as_unreachable(next((one for one in errors if not _is_unsupported(one)), errors[0]))
        return True

    def _as_unreachable(self, error: FanoutError) -> FanoutError:
        """Return the error for a primary that accepts no version."""
        if not isinstance(error, LinkLost):
            return error
        address = self._link.primaries[0]
        return PrimaryUnreachable(
            f"{address} does not answer as an MQTT server: {error.message}",
            hint="Check that an MQTT listener is there; it may want a client certificate (--client-certificate-file)"
            if address.has_tls
            else "Check that it is the address of an MQTT listener without TLS; one with TLS needs mqtts://",
        )

    async def _try(self, settings: Settings) -> bool:
        """Make a trial, and one with more patience if the primary was silent within a set; say whether it has proof."""
        trial = Trial(settings)
        self.trials.append(trial)
        if self._not_loaded:
            trial.add("messages of this probe", Outcome.NOT_TESTED, self._not_loaded)
        await run_trial(
            trial,
            self._selecting_own_topics(),
            node_id=self._tried_id,
            root=self._root,
            loaded=0 if self._not_loaded else self._loaded,
            publisher=self._publisher,
            on_check=self._on_check,
        )
        if trial.evidence is None and "retained set of" in trial.reason and settings.quiet_s is None:
            return await self._try(replace(settings, quiet_s=PATIENT_QUIET_S))
        return trial.is_proved

    def _selecting_own_topics(self) -> LinkConfig:
        """Return the link with a selector for the topics of the probe, unless one of its own takes them."""
        if self._not_loaded or self._overlapping():
            return self._link
        return replace(self._link, selectors=(*self._link.selectors, Selector(f"{self._root}/#")))

    def _overlapping(self) -> list[Selector]:
        """Return the wanted selectors that take topics of the probe."""
        own = Selector(f"{self._root}/#")
        return [one for one in self._link.selectors if overlap(own, one, local=False) is not None]

    def _covers_own_topics(self) -> bool:
        """Say whether the wanted selectors take all topics of the probe, or none."""
        selectors = self._overlapping()
        topics = [f"{self._root}/{topic}".encode() for topic in ("set/0", "new", "event")]
        return not selectors or all(any(one.matches(topic) for one in selectors) for topic in topics)

    async def _identify(self, version: int) -> None:
        """Ask the primary for its name and version."""
        row = (await self._ask([_VERSION_TOPIC], version)).get(_VERSION_TOPIC)
        self.server = "" if row is None else clean_text(row.decode(errors="replace"))[:_IDENTITY_TEXT_MAX]

    async def _load(self, publisher: Publisher, version: int) -> None:
        """Publish the retained messages of the probe, as many as the time allows."""
        if self._not_loaded:
            return
        self._on_check("publishing retained messages")
        loop = asyncio.get_running_loop()
        until = loop.time() + _LOAD_SHARE * self._timeout_s
        try:
            while self._loaded < self._set_size and loop.time() < until:
                piece = _PIECE if self._loaded else _FIRST
                topics = [
                    f"{self._root}/set/{number}"
                    for number in range(self._loaded, min(self._loaded + piece, self._set_size))
                ]
                await publisher.publish([(topic, topic.encode()) for topic in topics])
                # Over MQTT 3.1.1 a primary may acknowledge what it does not take.
                if not self._loaded and not (await self._ask(topics, version)).keys() >= set(topics):
                    raise PublishRefused("retained messages of this user below the prefix do not come back")
                self._loaded += len(topics)
        except PublishRefused as error:
            self._not_loaded = f"{error.message}: fanout probe --prefix names another, where it may"
        except FanoutError as error:
            if not self._loaded:
                self._not_loaded = error.message
        if not self._covers_own_topics():
            self._not_loaded = "--filter covers only a part of them: give another --prefix"

    async def _ask(self, topics: Sequence[str], version: int) -> dict[str, bytes]:
        """Return the retained messages of some topics that come by name."""
        link = replace(Settings(version, keeps=True).apply(self._link), snapshot_quiet_s=_ANSWER_QUIET_S)
        try:
            answer = await ask_by_name(link.primaries[0], link, topics, node_id=self._node_id, deadline_s=_ANSWER_S)
        except FanoutError:
            return {}
        return {topic: row[1] for topic, row in answer.values.items()}

    async def clean_up(self) -> str:
        """Remove what the probe retained, in a task of its own; return a text that names the rest, empty for none."""
        cleaning = asyncio.create_task(self._clear(), name="probe: clean up")
        try:
            async with asyncio.timeout(_CLEAN_UP_S):
                return await asyncio.shield(cleaning)
        except TimeoutError:
            cleaning.cancel()
            return f"retained messages below {self._root}/"
        except asyncio.CancelledError:
            await asyncio.wait([cleaning], timeout=_CLEAN_UP_S)
            raise

    async def _clear(self) -> str:
        publisher = self._publisher
        if publisher is None or not publisher.retained:
            return ""
        try:
            await publisher.clear(tuple(publisher.retained))
        except FanoutError:
            return f"retained messages below {self._root}/" if self._loaded else ""
        return ""


def _is_unsupported(error: FanoutError) -> bool:
    return isinstance(error, PrimaryRefused) and error.reason_code in _UNSUPPORTED
