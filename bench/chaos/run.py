"""One chaos run: starts the servers, lets publisher, probers and witnesses go while faults come, and judges the end.

Owns the servers of one seed and the order of things; everything that it starts is ended by its pid when it is left.
Violations are kept as *findings*, each with its time, and the time line lists the actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from bench.chaos.client import Message, read_retained
from bench.chaos.explain import Window, explain
from bench.chaos.faults import FILTERS, START_S, Injector, learn_truth
from bench.chaos.plan import (
    EDGES,
    LEAF,
    PRIMARY,
    PROXIED,
    SAMPLE_TOPICS,
    Fault,
    Setting,
    draw_faults,
    draw_setting,
)
from bench.chaos.primary_files import AUDIT_USER, LINK_USER, PrimaryFiles
from bench.chaos.probe import Edge, Prober, describe, plain
from bench.chaos.publisher import Publisher
from bench.chaos.truth import Truth
from bench.chaos.witness import Witness
from bench.processes import Mosquitto, Node, Server, free_port, link, make_certificate, selector
from bench.proxy import Proxy

__all__ = ["Outcome", "run_seed"]

RESIDENT_BYTES_MAX = 384 << 20
"""More memory than a node with a few hundred topics may ever use."""
_STORED = '[retained]\nstorage = "disc"\n'
_READY_S = 60.0
_EQUAL_S = 60.0
_STOP_S = 30.0
_USAGE_EVERY_S = 1.0
_LOOK_S = 0.1
_LATE_S = 0.5
"""Longer than this the process of a chaos run may not stand still without being noted."""
_CANCEL_S = 2.0
_BEYOND_S = 3600.0
"""Longest time for starting, waiting for readiness, comparing and the reports, besides the faults."""
_FINDINGS_MAX = 20
"""More of them from the same client, node or report say nothing new."""


@dataclass(slots=True)
class Outcome:
    """Result of one run."""

    seed: int
    setting: Setting
    faults: dict[str, int] = field(default_factory=dict)
    """Number of faults of each kind."""
    findings: list[str] = field(default_factory=list)
    """Violations; empty for a good run."""
    findings_total: int = 0
    time_line: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if nothing was found."""
        return not self.findings_total


@dataclass(frozen=True, slots=True)
class _Tls:
    """TLS of the links of one run."""

    certificate: Path
    """Certificate and key of every server, and its own CA."""
    primary_port: int = field(default_factory=free_port)
    """Port of the primary for TLS."""
    above_leaf_port: int = field(default_factory=free_port)
    """Port of the node above the leaf for TLS."""

    def over(self, links: str) -> str:
        """Return a configuration of links with TLS in place of TCP."""
        return links.replace('"mqtt://', '"mqtts://').replace(
            "[[link]]\n", f'[[link]]\nca_file = "{self.certificate}"\n'
        )

    def listener(self, port: int) -> str:
        """Return the configuration of a node's listener."""
        files = f'certificate_file = "{self.certificate}"\nkey_file = "{self.certificate}"\n'
        return f'[[server.listener]]\naddress = "mqtts://127.0.0.1:{port}"\n{files}'


class _Run:
    """The state of one run."""

    def __init__(
        self,
        seed: int,
        *,
        draw: random.Random,
        setting: Setting,
        scratch: Path,
        proxy: Proxy,
        primary: Server,
        files: PrimaryFiles,
        tls: _Tls | None,
    ) -> None:
        self.setting = setting
        self._tls = tls
        self._primary_port = primary.port if tls is None else tls.primary_port
        self.outcome = Outcome(seed, setting)
        self.truth = Truth()
        self.windows: list[Window] = []
        self._draw = draw
        self._found_by: Counter[str] = Counter()  # by the first word, which says who was seen
        self._began = time.monotonic()
        self.primary = primary
        self.scratch = scratch
        self.proxy = proxy
        self.publisher = Publisher(
            primary.port,
            truth=self.truth,
            draw=random.Random(seed + 1_000_000),
            tell=self.tell,
            qos=self.setting.publish_qos,
            with_properties=self.setting.version == 5,
        )
        self.edges = [self._edge_a(), self._edge_b()]
        if self.setting.has_leaf:
            self.edges.append(self._leaf(self.edges[-1]))
        self.tap = self._node("tap", "tap", link(self._primary_port, *map(selector, FILTERS), settings=self._link()))
        self.nodes = [*(edge.node for edge in self.edges), self.tap]
        self.probers = [Prober(edge, truth=self.truth, violated=self.found) for edge in self.edges]
        self.witnesses = {
            edge.name: [self._witness(edge, durable=durable) for durable in (True, False)] for edge in self.edges
        }
        self.injector = Injector(
            primary=primary,
            files=files,
            draw=random.Random(seed + 3_000_000),
            nodes={edge.name: edge.node for edge in self.edges},
            proxy=proxy,
            witnesses=self.witnesses,
            truth=self.truth,
            publisher=self.publisher,
            tell=self.tell,
        )

    def tell(self, what: str) -> None:
        """Add a line to the time line."""
        self.outcome.time_line.append(f"{time.monotonic() - self._began:7.2f} {what}")

    def found(self, what: str) -> None:
        """Note a violation."""
        self.outcome.findings_total += 1
        self._found_by[what.partition(" ")[0]] += 1
        if self._found_by[what.partition(" ")[0]] <= _FINDINGS_MAX:
            self.outcome.findings.append(f"{time.monotonic() - self._began:7.2f} {what}")
            self.tell(f"VIOLATION: {what}")

    def _link(self, *, session_expiry_s: int = 300, on_session_loss: str = "tear_down", version: int = 5) -> str:
        tight = self.setting.max_queued_messages > 0
        return (
            "retry_min_s = 0.05\nretry_max_s = 0.5\nheartbeat_s = 0.5\nsnapshot_quiet_s = 2.0\n"
            f"connect_timeout_s = 2.0\nkeep_alive_s = 5\nsession_expiry_s = {session_expiry_s}\n"
            f"audit_interval_s = {self.setting.audit_interval_s}\n"
            f'max_removed_percent = {100 if tight else 20}\non_session_loss = "{on_session_loss}"\ngrace_s = 60\n'
            f'version = {version}\nusername = "{LINK_USER}"\nsample_topics = {SAMPLE_TOPICS}\n'
            # Nobody confirms that a topic is deleted whose removal was dropped.
            f'audit_username = "{AUDIT_USER}"\n'
        )

    def _edge_a(self) -> Edge:
        links = link(
            self.proxy.port,
            selector("plant/#"),
            settings=self._link(session_expiry_s=self.setting.session_expiry_s, version=self.setting.version),
        )
        return Edge(self._node("secondary", PROXIED, links), {"plant": ""}, self.setting.horizon_of(PROXIED))

    def _edge_b(self) -> Edge:
        links = link(
            self._primary_port,
            selector("plant/+/v", prefix=self.setting.prefix),
            selector("office/#", qos=2, exclude=["office/debug/#"]),
            selector("hall/+", qos=0),
            settings=self._link(on_session_loss=self.setting.on_session_loss)
            + ("stamp_updates = true\n" if self.setting.stamped else ""),
        )
        if self.setting.stored:
            links = _STORED + links
        listener = "" if self._tls is None else self._tls.listener(self._tls.above_leaf_port)
        node = self._node("secondary", EDGES[1], links, settings=listener)
        prefixes = {"plant": self.setting.prefix, "office": "", "hall": ""}
        return Edge(node, prefixes, self.setting.horizon_of(EDGES[1]), frozenset({"hall"}))

    def _leaf(self, above: Edge) -> Edge:
        prefix = self.setting.prefix
        plant = selector(f"{prefix}plant/+/v")  # what the node above selects: the rest would look lost beside the tap
        port = above.node.port if self._tls is None else self._tls.above_leaf_port
        links = link(port, plant, selector("office/#", qos=2), settings=self._link())
        node = self._node("secondary", LEAF, links)
        return Edge(node, {"plant": prefix, "office": ""}, self.setting.horizon_of(LEAF))

    def _node(self, role: str, name: str, links: str, *, settings: str = "") -> Node:
        links = links if self._tls is None else self._tls.over(links)
        return Node(self.scratch, role=role, name=name, links=links, settings=settings)

    def _witness(self, edge: Edge, *, durable: bool) -> Witness:
        return Witness(
            f"witness-{edge.name}-{'durable' if durable else 'live'}",
            port=edge.node.port,
            filters=edge.queued_filters if durable else edge.filters,
            durable=durable,
            truth=self.truth,
            topic_at_primary=edge.at_primary,
            violated=self.found,
        )

    async def course(self, seconds: float, turns: int | None) -> None:
        """Inject faults, let everything come to rest, and judge the end."""
        try:
            await self.faults(seconds, turns)
            self.publisher.hold()
            self.tell("the last fault has ended, and nothing more is published")
            await self.publisher.drain()
            await self.judge_end()
        except (OSError, RuntimeError, TimeoutError, httpx.HTTPError) as error:
            self.found(f"the run was broken off: {type(error).__name__}: {error}")

    async def faults(self, seconds: float, turns: int | None) -> None:
        """Inject faults until the time is over, or so many times, and end the last of them."""
        end = time.monotonic() + seconds
        for turn in itertools.count():
            if time.monotonic() >= end if turns is None else turn == turns:
                return
            await asyncio.sleep(self._draw.uniform(0.5, 3.0))
            faults, recover = draw_faults(self._draw, self.setting)
            await asyncio.gather(*map(self._inject, faults))
            if recover:
                await self.until_ready()

    async def _inject(self, fault: Fault) -> None:
        kind = f"{fault.target}: {fault.kind}"
        self.outcome.faults[kind] = self.outcome.faults.get(kind, 0) + 1
        begin = datetime.now(UTC)
        try:
            await self.injector.inject(fault)
        finally:
            self.windows.append(Window(fault.target, fault.kind, begin, datetime.now(UTC)))

    def overflows(self) -> list[Window]:
        """Return when the primary may have dropped for every node: bursts as long as its queue, or nearly."""
        limit = self.setting.max_queued_messages
        bursts = self.publisher.bursts if limit else []
        return [Window(PRIMARY, "burst", begin, end) for begin, end, count in bursts if 2 * count >= limit]

    async def until_ready(self) -> None:
        """Return when every node is ready; a node that does not get there is a finding."""
        for node in self.nodes:

            async def is_ready(node: Node = node) -> bool:
                return (await asyncio.to_thread(node.readiness))["ready"] is True

            if not await _until(is_ready, deadline_s=_READY_S):
                self.found(f"{node.name} is not ready after {_READY_S:g} s without a fault: {node.get('/readyz').text}")
        self.tell("all nodes are ready")

    async def watch_memory(self) -> None:
        """Note the most memory that each node uses, until cancelled."""
        while True:
            for edge in self.edges:
                with contextlib.suppress(OSError, AssertionError, RuntimeError):  # it is killed, or started, right now
                    edge.resident_bytes_max = max(edge.resident_bytes_max, edge.node.usage().resident_bytes)
            await asyncio.sleep(_USAGE_EVERY_S)

    async def watch_itself(self) -> None:
        """Note when this process, hence the proxy in it, did not run for a while; until cancelled.

        A busy machine is a fault too: the node behind the proxy does not hear of its primary meanwhile.
        """
        while True:
            begin, before = datetime.now(UTC), time.monotonic()
            await asyncio.sleep(_LOOK_S)
            late_s = time.monotonic() - before - _LOOK_S
            if late_s > _LATE_S:
                self.tell(f"this process did not run for {late_s:.1f} s")
                self.windows.append(Window(PROXIED, "late", begin, datetime.now(UTC)))

    async def judge_end(self) -> None:
        """Compare, topic by topic, the primary with each secondary and each witness, when all is quiet."""
        await self.until_ready()
        await asyncio.sleep(max(0.0, self.truth.settled_at - time.monotonic()))
        for edge in self.edges:
            wrong: list[str] = []

            async def is_equal(edge: Edge = edge, wrong: list[str] = wrong) -> bool:
                wrong[:] = await self._unequal(edge)
                return not wrong

            if not await _until(is_equal, deadline_s=_EQUAL_S):
                self.found(
                    f"{edge.name} does not equal the primary in the end: {len(wrong)} topics, {'; '.join(wrong[:5])}"
                )
        self.tell("what the nodes serve was compared with the primary")

    async def _unequal(self, edge: Edge) -> list[str]:
        at_primary = await read_retained(self.primary.port, "chaos-reader", FILTERS)
        wanted = {local: held for topic, held in at_primary.items() if (local := edge.local(topic)) is not None}
        served = await read_retained(edge.node.port, "chaos-reader", edge.filters)
        views: list[tuple[str, Sequence[str], dict[str, Message]]] = [(edge.name, edge.filters, served)]
        views += [(each.name, each.filters, each.values) for each in self.witnesses[edge.name]]
        return [
            f"{topic} at {name}: {describe(view.get(topic))}, not {describe(wanted.get(topic))}"
            for name, filters, view in views
            for topic in sorted({*wanted, *view})
            if topic.startswith(tuple(each[:-1] for each in filters))
            and _shown(view.get(topic)) != _shown(wanted.get(topic))
        ]

    def judge_memory(self) -> None:
        """Note what used too much."""
        for edge in self.edges:
            if edge.resident_bytes_max > RESIDENT_BYTES_MAX:
                self.found(f"{edge.name} used {edge.resident_bytes_max >> 20} MiB of memory")

    def judge_logs(self) -> None:
        """Look at how the nodes ended and what they wrote."""
        for node in self.nodes:
            code = node.stop(deadline_s=_STOP_S)
            if code:
                self.found(f"{node.name} ended with {code}")
            text = node.log_text()
            if "Traceback" in text:
                self.found(f"{node.name} wrote a traceback: {text[text.index('Traceback') :][:2000]}")


async def run_seed(
    seed: int,
    *,
    seconds: float,
    reports: bool,
    turns: int | None = None,
    keep: Path | None = None,
    primary_role: str | None = None,
    tls: bool = False,
) -> Outcome:
    """Run one seed.

    Args:
        seed: Decides the configuration, the faults and what is published.
        seconds: For how long faults are injected.
        turns: Number of faults, however long it takes; None for the time.
        reports: True if the reports on the logs are made and judged too; they need Java.
        keep: A directory for all files of the run; None for one that is removed.
        primary_role: Kind of the primary, as for `draw_setting`.
        tls: True if every link speaks TLS.

    Raises:
        TimeoutError: Servers or reports take far longer than anything here may take.
    """
    started = _started(seed, keep=keep, primary_role=primary_role, tls=tls)
    async with asyncio.timeout(seconds + _BEYOND_S), started as run:
        tasks = [
            asyncio.create_task(each)
            for each in (
                run.publisher.run(),
                run.watch_memory(),
                run.watch_itself(),
                *(prober.run() for prober in run.probers),
                *(witness.run() for witnesses in run.witnesses.values() for witness in witnesses),
            )
        ]
        course = asyncio.create_task(run.course(seconds, turns))
        try:
            await asyncio.wait((course, *tasks), return_when=asyncio.FIRST_COMPLETED)  # of `tasks` none ends by itself
        finally:
            waiting = {course, *tasks}
            while waiting:  # again, for a library may swallow a cancellation
                for task in waiting:
                    task.cancel()
                _, waiting = await asyncio.wait(waiting, timeout=_CANCEL_S)
            await run.publisher.close()
        for task in (course, *tasks):
            if not task.cancelled():
                task.result()
        run.judge_memory()
        await asyncio.to_thread(run.judge_logs)
        outcome = run.outcome
        outcome.figures = {
            "published": run.publisher.sent_total,
            "ready_answers": sum(prober.ready_total for prober in run.probers),
            "joins_compared": sum(prober.checked_total for prober in run.probers),
            "witnessed": sum(each.received_total for witnesses in run.witnesses.values() for each in witnesses),
            "resident_mib_max": max(edge.resident_bytes_max for edge in run.edges) >> 20,
        }
        if reports:
            logs = {node.name: node.log_directory for node in run.nodes}
            windows = [*run.windows, *run.overflows()]
            figures, unexplained = await asyncio.to_thread(
                explain, logs, windows, setting=run.setting, scratch=run.scratch
            )
            outcome.figures |= figures
            for each in unexplained:
                run.found(f"unexplained: {each}")
        return outcome


@asynccontextmanager
async def _started(seed: int, *, keep: Path | None, primary_role: str | None, tls: bool) -> AsyncIterator[_Run]:
    """Give a run whose servers have started and whose primary has a value at every topic; end them all afterwards."""
    async with AsyncExitStack() as ends:
        if keep is None:
            scratch = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fanout-chaos-")))
        else:
            scratch = keep / f"seed-{seed}"
            scratch.mkdir(parents=True)
        draw = random.Random(seed)
        setting = draw_setting(draw, random.Random(seed + 2_000_000), primary_role=primary_role)
        secured = None
        if tls:
            secured = _Tls(scratch / "server.pem")
            make_certificate(secured.certificate)
        files = PrimaryFiles(scratch)
        primary = _primary(setting, scratch, files, secured)
        ends.callback(primary.stop)
        await asyncio.to_thread(primary.start, deadline_s=START_S)
        proxy = await ends.enter_async_context(Proxy(primary.port if secured is None else secured.primary_port))
        run = _Run(
            seed, draw=draw, setting=setting, scratch=scratch, proxy=proxy, primary=primary, files=files, tls=secured
        )
        await run.publisher.load()
        await learn_truth(primary, run.truth, since=time.monotonic())
        run.publisher.resume()
        for node in run.nodes:
            ends.callback(node.stop)
        first, *others = run.nodes
        await asyncio.to_thread(
            first.start, deadline_s=START_S
        )  # alone, for it may have to compile what all of them run
        await asyncio.gather(*(asyncio.to_thread(node.start, deadline_s=START_S) for node in others))
        await run.until_ready()
        yield run


def _primary(setting: Setting, scratch: Path, files: PrimaryFiles, tls: _Tls | None) -> Server:
    """Return the primary, which keeps retained values and, a Mosquitto, sessions over a restart."""
    if setting.primary_role == "fanout":
        listener = "" if tls is None else tls.listener(tls.primary_port)
        return Node(scratch, role="primary", name=PRIMARY, links=_STORED, settings=listener)
    settings = [
        f"max_queued_messages {setting.max_queued_messages}",
        "persistence true",
        f"persistence_location {scratch}/",
        "autosave_interval 2",
        f"acl_file {files.access}",
        "sys_interval 1",
    ]
    if tls is not None:
        settings += [
            f"listener {tls.primary_port} 127.0.0.1",
            f"certfile {tls.certificate}",
            f"keyfile {tls.certificate}",
        ]
    return Mosquitto(scratch, name=PRIMARY, settings=settings)


async def _until(condition: Callable[[], Awaitable[bool]], *, deadline_s: float) -> bool:
    """Return True once `condition` holds, False when it did not in time; a server that does not answer is no answer."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError, TimeoutError, httpx.HTTPError):
            if await condition():
                return True
        await asyncio.sleep(0.1)
    return False


def _shown(message: Message | None) -> tuple[bytes, dict[str, Any]] | None:
    """Return what a user sees of a value."""
    return None if message is None else (message.payload, plain(message.properties))
