"""A real HAProxy in front of some nodes, and what it thinks of them."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from bench.processes import Node, Server, free_port

__all__ = ["HAProxy", "find_haproxy"]


def find_haproxy() -> str | None:
    """Return the path of HAProxy, or None when the machine has none."""
    return shutil.which("haproxy", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


class HAProxy(Server):
    """An HAProxy with the backend of `configs/haproxy.cfg`, with quicker checks and addresses on loopback."""

    def __init__(self, directory: Path, example: str, nodes: Sequence[tuple[Node, int]], *, check_s: float) -> None:
        """Describe it.

        Args:
            directory: For its configuration, socket and log.
            example: The text of `configs/haproxy.cfg`.
            nodes: The nodes, each with the port of its agent check.
            check_s: Pause between checks.
        """
        binary = find_haproxy()
        if binary is None:
            raise RuntimeError("HAProxy was not found. On Debian or Ubuntu: sudo apt-get install haproxy")
        self._path = directory / "haproxy.cfg"
        self._socket = directory / "haproxy.sock"
        super().__init__([binary, "-db", "-f", str(self._path)], log=directory / "haproxy.log", port=free_port())
        text = _with_servers(example, nodes).replace("/tmp/fanout-haproxy.sock", str(self._socket))
        text = text.replace("bind :1883", f"bind 127.0.0.1:{self.port}")
        text = text.replace("500ms", f"{int(check_s * 1000)}ms").replace("check port 8080", "check")
        self._text = text.replace("agent-port 8082 ", "")

    def _prepare(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._path.write_text(self._text + "\n")

    def _listens(self) -> bool:
        # It gets its name last. A connection to the other port would go to a node, and be counted at some time.
        return self._socket.exists()

    def ask(self, command: str) -> str:
        """Return its answer to a command on its own socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._socket))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
        return answer.decode()

    def servers(self, *, backend: str = "secondaries") -> dict[str, dict[str, str]]:
        """Return the figures of each server of a backend, such as `status`, `weight`, `stot` (connections so far)."""
        head, *rows = self.ask("show stat").removeprefix("# ").strip().splitlines()
        names = head.split(",")
        found = [dict(zip(names, row.split(","), strict=False)) for row in rows if row.strip()]
        servers = (row for row in found if row["svname"] not in ("FRONTEND", "BACKEND"))
        return {row["svname"]: row for row in servers if row["pxname"] == backend}

    def status(self, name: str, *, backend: str = "secondaries") -> str:
        """Return the status of one server: `UP`, `DOWN`, `NOLB` or `DRAIN`, perhaps with more behind it."""
        return self.servers(backend=backend)[name]["status"]

    def clients_sent(self, name: str) -> int:
        """Return how many connections it has sent to one server."""
        return int(self.servers()[name]["stot"])

    def weight(self, name: str) -> int:
        """Return the weight of one server: its share of new connections beside the others' weights."""
        return int(self.servers()[name]["weight"])

    def is_up(self, name: str) -> bool:
        """Return whether it sends clients to one server."""
        return self.status(name).startswith("UP")


def _with_servers(example: str, nodes: Sequence[tuple[Node, int]]) -> str:
    """Return the example with the nodes in place of the servers of each backend."""
    lines: list[str] = []
    is_asked = has_servers = False
    for line in example.splitlines():
        word = line.strip().partition(" ")[0]
        if word == "backend":
            is_asked = has_servers = False
        is_asked |= "agent-check" in line and not line.strip().startswith("#")
        if word != "server":
            lines.append(line)
        elif not has_servers:
            has_servers = True
            for node, agent_port in nodes:
                agent = f" agent-port {agent_port}" if is_asked else ""
                lines.append(f"    server {node.name} 127.0.0.1:{node.port} port {node.http_port}{agent}")
    return "\n".join(lines)
