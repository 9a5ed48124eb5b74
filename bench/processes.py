"""Servers as child processes: free ports, configuration in a scratch directory, waiting, ending them by pid.

Used by the benchmarks, the demonstration and the tests. Every server listens on loopback only.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import httpx

__all__ = [
    "FlashMQ",
    "Mosquitto",
    "Node",
    "Server",
    "Usage",
    "find_mosquitto",
    "free_port",
    "free_ports",
    "link",
    "make_certificate",
    "pool_section",
    "selector",
    "wait_for",
    "wait_for_port",
]

_ANSWER_S = 30.0
"""Time for a node's answer over HTTP: on a busy machine the first answer waits for the interface."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PORTS = range(20_000, 32_768)
"""Below the ports that Linux and macOS give to outgoing connections. So no other client can take the port, or connect
to itself, between a look and the bind, or while a server is down on purpose.
"""


def _ports_in_turn() -> Iterator[int]:
    """Yield all ports from a random one on, none twice before all were; of tests in several processes, each its own."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    number, size = int(worker.removeprefix("gw")) % int(workers), len(_PORTS) // int(workers)
    share = _PORTS[number * size :][:size]
    first = random.randrange(size)
    return itertools.cycle([*share[first:], *share[:first]])


_ports = _ports_in_turn()


def free_port() -> int:
    """Return a TCP port on loopback that nothing uses now, and that was not returned lately to be used later."""
    while True:
        if _is_free(port := next(_ports)):
            return port


def free_ports(count: int) -> range:
    """Return adjacent TCP ports on loopback, each as `free_port` returns it."""
    ports = [free_port() for _ in range(count)]
    while ports[-1] - ports[0] != count - 1:  # one between is taken, or the share has ended
        ports = [*ports[1:], free_port()]
    return range(ports[0], ports[0] + count)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_for(condition: Callable[[], bool], *, what: str, deadline_s: float = 30.0) -> None:
    """Return once `condition` holds; raise TimeoutError, naming `what`, after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {deadline_s:g} s")
        time.sleep(0.01)


def wait_for_port(port: int, *, deadline_s: float = 30.0) -> None:
    """Return once something accepts connections on `port`."""
    wait_for(lambda: _accepts(port), what=f"a server on port {port}", deadline_s=deadline_s)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def find_mosquitto() -> str | None:
    """Return the path of a Mosquitto broker, or None when the machine has none."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a process has used, by the kernel's accounting."""

    cpu_s: float
    """User and system time, in seconds."""
    resident_bytes: int
    """The resident set size now."""
    resident_bytes_max: int
    """The highest resident set size so far."""


def _used_by(pid: str) -> tuple[float, int, int]:
    """Return CPU seconds, and resident memory now and at most in bytes, of one process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    now, peak = (
        next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key)) for key in ("VmRSS", "VmHWM")
    )
    return (int(stat[11]) + int(stat[12])) / _TICKS_PER_SECOND, now, peak


class Process(Protocol):
    """The part of `subprocess.Popen` that a server needs."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | Any: ...  # `Popen` says that it is never None
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class Server:
    """One server process: `start`, then `stop` or `kill`, any number of times, on the same port.

    A context manager, which starts and stops it.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, port: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        """The command line."""
        self.port = port
        """The MQTT port on loopback; 0 when it has none."""
        self.log_path = log
        """File that takes its standard output and error, of every start."""
        self.environment = {**os.environ, **(environment or {})}
        """All environment variables of the process."""
        self.process: Process | None = None
        """The process; None before `start` and after `stop`."""

    @property
    def host(self) -> str:
        """Its address."""
        return "127.0.0.1"

    @property
    def address(self) -> str:
        """Its MQTT address, as a link's configuration writes it."""
        return f"mqtt://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """True if the process runs."""
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        """Return what it has written to standard output and error so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, *, deadline_s: float = 120.0) -> None:
        """Start the process and wait until it accepts connections, for `deadline_s` at most.

        Raises:
            RuntimeError: It ended instead.
            TimeoutError: It does not listen in time.
        """
        if self.running:
            raise RuntimeError("it runs already")
        self._prepare()
        with self.log_path.open("ab") as output:
            process = self.process = self.spawn(output)
        try:
            wait_for(
                lambda: process.poll() is not None or self._listens(),
                what=f"{self.command[0]} on port {self.port} (see {self.log_path})",
                deadline_s=deadline_s,
            )
        except TimeoutError:
            self.stop()
            raise
        if process.poll() is not None:
            self.process = None
            command = " ".join(self.command)
            raise RuntimeError(f"{command} ended with {process.returncode}:\n{self.log_text()[-2000:]}")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, which must be running."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, how: signal.Signals = signal.SIGTERM, *, deadline_s: float = 20.0) -> int | None:
        """End the process with `how`, SIGKILL after `deadline_s`; return its exit code, None when none ran."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode

    def kill(self) -> None:
        """End the process at once (SIGKILL) and wait until it is gone; does nothing when none runs."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def usage(self) -> Usage:
        """Return what the process and its children have used so far."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return Usage(*map(sum, zip(*map(_used_by, [str(pid), *children]), strict=True)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Differences between kinds of server.

    def spawn(self, output: BinaryIO) -> Process:
        """Start the process, with what it writes going to `output`."""
        return subprocess.Popen(
            self.command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its servers in order
        )

    def _prepare(self) -> None:
        """Write the configuration for this start."""

    def _listens(self) -> bool:
        return not self.port or _accepts(self.port)


class Mosquitto(Server):
    """A Mosquitto with its default configuration, apart from its listener, and further settings.

    Without persistence, which is the default, it forgets sessions and retained values when it is restarted.
    """

    def __init__(
        self, directory: Path, *, name: str = "mosquitto", port: int | None = None, settings: Sequence[str] = ()
    ) -> None:
        """Describe a server.

        Args:
            directory: For its configuration and log; must exist.
            name: Of these files.
            port: TCP port on loopback; None picks a free one.
            settings: Further lines of its configuration, such as `acl_file PATH`; read at every start.

        Raises:
            RuntimeError: The machine has no Mosquitto.
        """
        binary = find_mosquitto()
        if binary is None:
            raise RuntimeError("Mosquitto was not found. On Debian or Ubuntu: sudo apt-get install mosquitto")
        self._config = directory / f"{name}.conf"
        super().__init__([binary, "-c", str(self._config)], log=directory / f"{name}.log", port=port or free_port())
        self.directory = directory
        self.settings = list(settings)

    def _prepare(self) -> None:
        lines = [
            f"listener {self.port} {self.host}",
            "allow_anonymous true",
            "user root",  # else, started by root, it becomes somebody who cannot read a private directory
            "log_dest stderr",
            *self.settings,
        ]
        self._config.write_text("\n".join(lines) + "\n")

    def _listens(self) -> bool:
        further = [int(line.split()[1]) for line in self.settings if line.startswith("listener ")]
        return all(map(_accepts, [self.port, *further]))


class FlashMQ(Server):
    """A FlashMQ with one bridge, from a binary that the machine's user names: no package index has one."""

    def __init__(self, directory: Path, *, binary: str, primary_port: int, topic_filter: str, qos: int) -> None:
        """Describe a server.

        Args:
            directory: For its configuration and log; must exist.
            binary: Path of FlashMQ.
            primary_port: Port on loopback of the server that it bridges.
            topic_filter: Topic Filter of its subscription there.
            qos: The Maximum QoS of that subscription.

        Raises:
            RuntimeError: There is no such program.
        """
        if shutil.which(binary) is None:
            raise RuntimeError(f"FLASHMQ names {binary!r}, which is no program")
        self._config = directory / "flashmq.conf"
        super().__init__([binary, "--config-file", str(self._config)], log=directory / "flashmq.log", port=free_port())
        self._bridge = [f"port {primary_port}", "clientid_prefix bench", f"subscribe {topic_filter} {qos}"]

    def _prepare(self) -> None:
        """Write the configuration, as the manual page flashmq.conf(5) has it."""
        lines = [
            "allow_anonymous true",
            # As little as possible is dropped: a reader that lags fails a benchmark.
            "client_max_write_buffer_size 268435456",
            "max_qos_msg_pending_per_client 65535",
            "max_qos_bytes_pending_per_client 268435456",
            *_block(
                "listen", "protocol mqtt", f"port {self.port}", "inet_protocol ip4", f"inet4_bind_address {self.host}"
            ),
            *_block("bridge", f"address {self.host}", "protocol_version mqtt3.1.1", *self._bridge),
        ]
        self._config.write_text("\n".join(lines) + "\n")


def _block(name: str, *lines: str) -> tuple[str, ...]:
    """Return a section of the configuration of FlashMQ."""
    return (f"{name} {{", *(f"    {line}" for line in lines), "}")


class Node(Server):
    """One fanout node, with the address of its HTTP interface."""

    def __init__(
        self,
        scratch: Path,
        *,
        role: str,
        name: str,
        links: str = "",
        settings: str = "",
        log: bool | str = True,
        drain_s: float = 0.0,
        http: str = "",
        members: int = 0,
    ) -> None:
        """Describe a node.

        Args:
            scratch: Directory for its configuration, log and data.
            role: "primary", "secondary" or "tap".
            name: Its identifier.
            links: The part of its configuration that `link` returns, once or more often.
            settings: Further lines for `[server]`; must be empty for a tap.
            log: True if it writes a replication log; a text has further lines for `[log]`.
            drain_s: Duration of draining before it stops.
            http: Further lines for `[http]`.
            members: Processes that make a pool on this machine, whose first has the HTTP interface; 0 for one node.
        """
        self.name = name
        """The node's identifier."""
        self.role = role
        """Its role."""
        ports = free_ports(2 * members or 1)
        self.http_port = ports[0]
        """Port of the HTTP interface on loopback; further members have the next ones."""
        self._pool_port = ports[members]
        self.members = members
        """Processes that make a pool on this machine; 0 for one node."""
        self.log_directory = scratch / "replication-log" / name
        """Directory of its replication log."""
        self.links = links
        """The links of its configuration; read at every start."""
        self.settings = settings
        """Further lines for `[server]`; read at every start."""
        self._log = log
        self._drain_s = drain_s
        self._http = http
        self._data_directory = scratch / name
        self._config = scratch / f"{name}.toml"
        command = [sys.executable, "-m", "fanout", role, "--config", str(self._config)]
        if members:
            command += ["--members", str(members)]
        super().__init__(command, log=scratch / f"{name}.log", port=0 if role == "tap" else free_port())

    @property
    def url(self) -> str:
        """The address of the HTTP interface."""
        return f"http://{self.host}:{self.http_port}"

    def get(self, path: str) -> httpx.Response:
        """Return the answer of the HTTP interface at `path`."""
        return _get(self.url + path)

    def readiness(self) -> dict[str, object]:
        """Return what `/readyz` says, whether ready or not."""
        document: dict[str, object] = self.get("/readyz").json()
        return document

    def wait_ready(self, *, deadline_s: float = 60.0) -> None:
        """Return once `/readyz` says that the node is ready."""
        wait_for(self._is_ready, what=f"{self.name} being ready", deadline_s=deadline_s)

    def _is_ready(self) -> bool:
        return self.get("/v1/pool" if self.members else "/readyz").json()["ready"] is True

    def _prepare(self) -> None:
        sections = [
            f'[node]\nid = "{self.name}"\ndata_directory = "{self._data_directory}"\ndrain_s = {self._drain_s}\n'
        ]
        if self.port:
            sections.append(f'[server]\nlisten = ["{self.address}"]\n{self.settings}')
        sections.append(f'[http]\nlisten = "{self.host}:{self.http_port}"\n{self._http}')
        if self._log:
            further = self._log if isinstance(self._log, str) else ""
            sections.append(f'[log]\ndirectory = "{self.log_directory}"\n{further}')
        if self.members:
            sections.append(f'[pool]\nlisten = "{self.host}:{self._pool_port}"\n')
        self._config.write_text("\n".join([*sections, self.links]))

    def _listens(self) -> bool:
        ports = range(self.http_port, self.http_port + max(1, self.members))
        return super()._listens() and all(_accepts(port) and not self._starts(port) for port in ports)

    def _starts(self, http_port: int) -> bool:
        """Ask a member whether some of its listeners may be closed yet; they open one by one."""
        try:
            answer = _get(f"http://{self.host}:{http_port}/readyz")
        except httpx.TransportError:  # it has ended
            return True
        return "the node is starting" in answer.json()["reasons"]


def _get(url: str) -> httpx.Response:
    # Without certificates to load and proxies to look for, asking takes a twentieth of the time.
    return httpx.get(url, verify=False, trust_env=False, timeout=_ANSWER_S)


def selector(
    topic_filter: str, *, qos: int = 1, exclude: Sequence[str] = (), prefix: str = "", writes: str = "reject"
) -> str:
    """Return the configuration of one selector, for `link`."""
    excludes = ", ".join(f'"{one}"' for one in exclude)
    return (
        f'[[link.selector]]\nfilter = "{topic_filter}"\nqos = {qos}\nexclude = [{excludes}]\n'
        f'prefix = "{prefix}"\nwrites = "{writes}"\n'
    )


def make_certificate(path: Path) -> None:
    """Make a certificate for 127.0.0.1 that is its own CA, and its key, in one PEM file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise RuntimeError("OpenSSL was not found. On Debian or Ubuntu: sudo apt-get install openssl")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "90", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", f"{path}.key", "-out", f"{path}.crt"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes(Path(f"{path}.crt").read_bytes() + Path(f"{path}.key").read_bytes())


def link(port: int, *selectors: str, name: str = "primary", other_ports: Sequence[int] = (), settings: str = "") -> str:
    """Return the configuration of one link to a primary on loopback.

    Args:
        port: The primary's port.
        selectors: Replicated topics, from `selector`.
        name: Its name.
        other_ports: Further ports of the same primary.
        settings: Further lines for `[[link]]`.
    """
    addresses = ", ".join(f'"mqtt://127.0.0.1:{one}"' for one in (port, *other_ports))
    head = f'[[link]]\nname = "{name}"\nprimary = [{addresses}]\n{settings}'
    return "".join([head, *selectors])


def pool_section(port: int, peers: Sequence[int], *, settings: str = "") -> str:
    """Return the configuration of a member of a pool on loopback; it stands in front of the links.

    Args:
        port: Address for the other members.
        peers: Ports of all members, its own among them or not.
        settings: Further lines for `[pool]`.
    """
    addresses = ", ".join(f'"127.0.0.1:{one}"' for one in peers)
    return f'[pool]\nlisten = "127.0.0.1:{port}"\npeers = [{addresses}]\n{settings}\n'
