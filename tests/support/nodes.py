"""Real fanout nodes as processes, their HTTP documents, and what they left in their replication logs.

The process is that of the benchmarks (`bench.processes.Node`). `Nodes` starts them for one test and ends them
after it, and then demands what holds for every node: exit code 0, and no traceback in what it wrote. Logs are
read with pyarrow alone, as any other program would read them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from bench.processes import Node, Process, Server, link, selector
from tests.support.fork_server import may_fork, start_fanout
from tests.support.waiting import wait_until, wait_until_blocking

__all__ = [
    "QUICK",
    "LiveNode",
    "Nodes",
    "link",
    "processes_with",
    "read_events",
    "read_updates",
    "selector",
    "spawn_forked",
    "watched",
]

QUICK = "retry_min_s = 0.05\nretry_max_s = 0.25\n"
"""Settings of a link that does not leave a test waiting before it connects again."""


def spawn_forked(node: Node, output: BinaryIO) -> Process:
    """Start the process of a node as a fork of one that has imported everything, where that is the same."""
    if not may_fork(node.environment):
        return Server.spawn(node, output)
    with open(os.devnull, "rb") as nothing:
        return start_fanout(
            node.command[node.command.index("fanout") + 1 :],
            environment=node.environment,
            streams=(nothing.fileno(), output.fileno(), output.fileno()),
            new_session=True,
        )


class LiveNode(Node):
    """A node, with what its HTTP interface answers."""

    starts_from_nothing = False
    """Whether `python -m fanout` starts it, instead of a fork of a process that has imported everything."""

    def spawn(self, output: BinaryIO) -> Process:
        """Start the process: forked, where nobody asked for a start from nothing."""
        return super().spawn(output) if self.starts_from_nothing else spawn_forked(self, output)

    def probe(self) -> tuple[int, Any]:
        """Return the status code and the document of `/readyz`."""
        answer = self.get("/readyz")
        return answer.status_code, answer.json()

    @property
    def ready(self) -> bool:
        """Whether a load balancer would send clients here: `/readyz` answers 200."""
        return self.probe()[0] == 200

    def document(self, path: str) -> Any:
        """Return the JSON document at `path`."""
        return self.get(path).raise_for_status().json()

    def link_status(self, name: str = "primary") -> Any:
        """Return what `/v1/status` says about one link."""
        return next(one for one in self.document("/v1/status")["links"] if one["name"] == name)

    def link_state(self, name: str = "primary") -> str:
        """Return the state of one link."""
        return str(self.link_status(name)["state"])

    def topics(self, name: str = "primary") -> int:
        """Return how many topics the replica of one link holds."""
        return int(self.link_status(name)["topics"])

    def wait_until_ready(self, *, deadline_s: float = 60.0) -> None:
        """Return once it is ready; for tests without an event loop."""
        wait_until_blocking(lambda: self.ready, deadline_s, what=self._not_ready)

    async def until_ready(self, *, deadline_s: float = 60.0) -> None:
        """Return once it is ready, while the test's event loop keeps running."""
        await wait_until(lambda: self.ready, deadline_s, what=self._not_ready)

    def started(self) -> LiveNode:
        """Start it and return it once it is ready; for tests without an event loop."""
        self.start()
        self.wait_until_ready()
        return self

    async def begin(self) -> LiveNode:
        """Start it and return it once it is ready, while the test's event loop keeps running."""
        await asyncio.to_thread(self.start)
        await self.until_ready()
        return self

    def _not_ready(self) -> str:
        return f"{self.name} being ready ({self.probe()[1]['reasons']})\n{self.log_text()}\n"


@contextmanager
def watched(node: LiveNode) -> Iterator[list[Any]]:
    """Ask for `/readyz` all the time, and give the documents of the answers; only while the node listens."""
    answers: list[Any] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            try:
                status, document = node.probe()
            except httpx.TransportError:  # it starts only now, or has ended
                continue
            assert (status == 200) is document["ready"]
            answers.append(document)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield answers
        finally:
            ended.set()
            watching.result(10)


class Nodes:
    """The nodes of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._nodes: list[LiveNode] = []

    def secondary(
        self,
        *links: str,
        name: str = "edge-1",
        settings: str = "",
        log: bool | str = True,
        drain_s: float = 0.0,
        http: str = "",
        members: int = 0,
    ) -> LiveNode:
        """Describe a secondary, or several members of a pool on this machine; the test starts it."""
        return self._add(
            "secondary", links, name=name, settings=settings, log=log, drain_s=drain_s, http=http, members=members
        )

    def primary(self, *, name: str = "hub", settings: str = "", log: bool | str = True) -> LiveNode:
        """Describe a `fanout primary`."""
        return self._add("primary", (), name=name, settings=settings, log=log)

    def tap(self, *links: str, name: str = "tap", log: bool | str = True) -> LiveNode:
        """Describe a tap."""
        return self._add("tap", links, name=name, settings="", log=log)

    def end(self) -> None:
        """Stop every node that runs, all at once, and check how each ended."""
        running = [node for node in self._nodes if node.process is not None]
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            codes = dict(zip([node.name for node in running], pool.map(LiveNode.stop, running), strict=True))
        assert set(codes.values()) <= {0}, f"exit codes {codes}:\n{self._logs()}"
        assert "Traceback" not in self._logs(), self._logs()

    def _add(
        self,
        role: str,
        links: Sequence[str],
        *,
        name: str,
        settings: str,
        log: bool | str,
        drain_s: float = 0.0,
        http: str = "",
        members: int = 0,
    ) -> LiveNode:
        node = LiveNode(
            self.directory,
            role=role,
            name=name,
            links="\n".join(links),
            settings=settings,
            log=log,
            drain_s=drain_s,
            http=http,
            members=members,
        )
        self._nodes.append(node)
        return node

    def _logs(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.log_text()}" for node in self._nodes)


def processes_with(text: str) -> list[str]:
    """Return the command lines of all processes that contain `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text in command:
            found.append(command)
    return found


def read_updates(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the table `updates` that are sealed in a log directory, in their order."""
    return _read(directory, "updates")


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the table `events` that are sealed in a log directory, in their order."""
    return _read(directory, "events")


def _read(directory: Path, table: str) -> list[dict[str, Any]]:
    files = sorted((directory / "v1" / table).glob("node=*/date=*/hour=*/*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(rows, key=lambda row: (row["node_epoch"], row["log_pos"]))
