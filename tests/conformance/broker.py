"""A node in place of the broker that a suite starts: one process, its configuration translated from the suite's own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.processes import wait_for_port

__all__ = ["start", "translate"]

_SERVER_KEYS = {
    "max_keepalive": "keep_alive_max_s",
    "max_packet_size": "packet_bytes_max",
    "max_connections": "connections_max",
    "maximum_qos": "qos_max",
    "max_inflight_messages": "inflight_max",
    "max_queued_messages": "queue_messages_max",
    "sys_interval": "sys_interval_s",
}
"""Keys of a Mosquitto's configuration, and those of `[server]` that mean the same."""
_USER, _PASSWORD = "user", "password"
"""The one user of Mosquitto's password files, whose hashes a node does not read."""


def translate(lines: Sequence[str], directory: Path) -> tuple[list[str], list[str]]:
    """Return the lines of `[server]` and of `[access]` that say what a Mosquitto's configuration says.

    Args:
        lines: Of that configuration; what a node does not know is left out.
        directory: For a password file.
    """
    pairs = {key: value.strip() for key, _, value in (line.strip().partition(" ") for line in lines)}
    server = [f"{ours} = {pairs[theirs]}" for theirs, ours in _SERVER_KEYS.items() if theirs in pairs]
    access = [f'anonymous = "{"always" if pairs.get("allow_anonymous") == "true" else "never"}"']
    if "password_file" in pairs:
        users = directory / "users"
        command = [sys.executable, "-m", "fanout", "passwd", "--batch", str(users), _USER]
        subprocess.run(command, input=_PASSWORD.encode(), check=True, capture_output=True)
        access.append(f'password_file = "{users}"')
    return server, access


def start(
    port: int, *, server: Sequence[str] = (), access: Sequence[str] = (), directory: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a primary on loopback and return its process once it listens; standard error is a pipe.

    Args:
        port: Where it listens.
        server: Further lines of `[server]`.
        access: Lines of `[access]` and behind it.
        directory: For its files; None makes one.
    """
    directory = directory or Path(tempfile.mkdtemp(prefix="fanout-conformance-"))
    path = directory / "node.toml"
    head = ["[node]", 'id = "conformance"', f'data_directory = "{directory}/data"']
    listen = f'listen = ["mqtt://127.0.0.1:{port}"]'
    path.write_text("\n".join([*head, "[server]", listen, *server, "[access]", *access]) + "\n")
    command = [sys.executable, "-m", "fanout", "primary", "--config", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for_port(port, deadline_s=120.0)
    return process
