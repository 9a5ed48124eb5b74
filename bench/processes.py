"""Servers as child processes: free ports, configuration in a scratch directory, waiting, ending them by pid.

Used by the benchmarks and by the demonstration. Every server listens on loopback only.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = [
    "Node",
    "Server",
    "Usage",
    "find_mosquitto",
    "free_port",
    "link",
    "mosquitto",
    "wait_for",
    "wait_for_port",
]

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a TCP port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], *, what: str, deadline_s: float = 30.0) -> None:
    """Return once `condition` holds; raise TimeoutError, naming `what`, after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {deadline_s:g} s")
        time.sleep(0.01)


def wait_for_port(port: int, *, deadline_s: float = 30.0) -> None:
    """Return once something accepts connections on `port`."""

    def accepts() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(accepts, what=f"a server on port {port}", deadline_s=deadline_s)


def find_mosquitto() -> str | None:
    """Return the path of a Mosquitto broker, or None when the machine has none."""
    return shutil.which(
        "mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used, by the kernel's accounting."""

    cpu_s: float
    """User and system time, in seconds."""
    resident_bytes_max: int
    """The highest resident set size so far."""


class Server:
    """One server process; a context manager that ends it by its pid."""

    def __init__(
        self, command: Sequence[str], *, log: Path, port: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        """The command line, for restarts."""
        self.port = port
        """The MQTT port on loopback, or 0 for a node without listeners."""
        self.log = log
        """File that takes its standard output and error."""
        self._environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None
        """The running process; None before `start` and after `stop`."""

    def start(self) -> None:
        """Start the process and wait until its MQTT port accepts connections."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its servers in order
            )
        if self.port:
            wait_for(self._listens, what=f"{self.command[0]} on port {self.port} (see {self.log})")

    def _listens(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(self.command)} ended with {self.process.returncode}:\n{tail}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

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

    def usage(self) -> Usage:
        """Return what the process has used so far."""
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return Usage((int(stat[11]) + int(stat[12])) / _TICKS_PER_SECOND, int(peak.split()[1]) * 1024)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def mosquitto(scratch: Path, *, name: str, port: int | None = None, settings: str = "") -> Server:
    """Prepare a Mosquitto with its default configuration plus `settings`; raise RuntimeError without one."""
    binary = find_mosquitto()
    if binary is None:
        raise RuntimeError("Mosquitto was not found. On Debian or Ubuntu: sudo apt-get install mosquitto")
    port = port or free_port()
    config = scratch / f"{name}.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n{settings}")
    return Server([binary, "-c", str(config)], log=scratch / f"{name}.log", port=port)


class Node(Server):
    """One fanout node, with the address of its HTTP interface."""

    def __init__(
        self, scratch: Path, *, role: str, name: str, links: str = "", settings: str = "", log: bool = True
    ) -> None:
        self.name = name
        """The node's identifier."""
        self.http_port = free_port()
        """Port of the HTTP interface on loopback."""
        port = 0 if role == "tap" else free_port()
        self.log_directory = scratch / "replication-log" / name
        """Where it keeps its replication log."""
        config = scratch / f"{name}.toml"
        server = f'[server]\nlisten = ["mqtt://127.0.0.1:{port}"]\n' if port else ""
        replication_log = f'[log]\ndirectory = "{self.log_directory}"\n' if log else ""
        config.write_text(
            f'[node]\nid = "{name}"\ndata_directory = "{scratch / name}"\n{server}'
            f'[http]\nlisten = "127.0.0.1:{self.http_port}"\n'
            f"{replication_log}{settings}{links}"
        )
        command = [sys.executable, "-m", "fanout", role, "--config", str(config)]
        super().__init__(command, log=scratch / f"{name}.log", port=port)

    @property
    def url(self) -> str:
        """The address of the HTTP interface."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start the node and wait until its HTTP interface answers."""
        super().start()
        wait_for_port(self.http_port)

    def readiness(self) -> dict[str, object]:
        """Return what `/readyz` says, whether ready or not."""
        document: dict[str, object] = httpx.get(f"{self.url}/readyz").json()
        return document

    def wait_ready(self, *, deadline_s: float = 60.0) -> None:
        """Return once `/readyz` says that the node is ready."""
        wait_for(
            lambda: self.readiness()["ready"] is True, what=f"{self.name} being ready", deadline_s=deadline_s
        )


def link(primary_port: int, *, topic_filter: str = "#", qos: int = 0, settings: str = "") -> str:
    """Return the configuration of one link to a primary on loopback, with one selector."""
    return (
        f'[[link]]\nname = "primary"\nprimary = "mqtt://127.0.0.1:{primary_port}"\n{settings}'
        f'[[link.selector]]\nfilter = "{topic_filter}"\nqos = {qos}\n'
    )
