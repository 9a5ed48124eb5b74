"""The servers of a roaming run: a Mosquitto, the members of a pool, and an HAProxy in front of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.processes import Mosquitto, Node, Server, free_port, link, selector, wait_for
from bench.roaming.faults import DEAD_AFTER_S

__all__ = ["Balancer", "find_haproxy", "pool_behind_haproxy"]

_HAPROXY = """\
defaults
    mode tcp
    timeout connect 1s
    timeout check 1s
    timeout client 1h
    timeout server 1h

frontend mqtt
    bind 127.0.0.1:{port}
    default_backend members

backend members
    balance roundrobin
    option httpchk GET /readyz?draining=404
    http-check disable-on-404
    option redispatch
    retries 3
    default-server check inter 200ms fall 1 rise 1 on-marked-down shutdown-sessions
"""


def find_haproxy() -> str | None:
    """Return the path of HAProxy, or None when the machine has none."""
    return shutil.which("haproxy", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


class Balancer(Server):
    """An HAProxy that gives each connection to the next member, whoever comes."""

    def __init__(self, directory: Path, members: Sequence[Node]) -> None:
        """Describe it.

        Args:
            directory: For its configuration and log; must exist.
            members: They get the connections.

        Raises:
            RuntimeError: The machine has no HAProxy.
        """
        binary = find_haproxy()
        if binary is None:
            raise RuntimeError("HAProxy was not found. On Debian or Ubuntu: sudo apt-get install haproxy")
        self._path = directory / "haproxy.cfg"
        self._members = members
        super().__init__([binary, "-db", "-f", str(self._path)], log=directory / "haproxy.log", port=free_port())

    def _prepare(self) -> None:
        servers = [f"    server {each.name} {each.host}:{each.port} port {each.http_port}" for each in self._members]
        self._path.write_text("\n".join([_HAPROXY.format(port=self.port), *servers]) + "\n")


@contextlib.contextmanager
def pool_behind_haproxy(directory: Path, *, size: int) -> Iterator[tuple[list[Node], Balancer]]:
    """Run a pool of `size` members that know each other, and give it with the HAProxy in front of it."""
    with contextlib.ExitStack() as stack:
        # A member that is away for a while must not lose what it would have got.
        settings = ["max_queued_messages 0", "max_inflight_messages 0", "max_inflight_bytes 0"]
        primary = stack.enter_context(Mosquitto(directory, settings=settings))
        ports = [free_port() for _ in range(size)]
        members = []
        for number, port in enumerate(ports):
            peers = ", ".join(f'"127.0.0.1:{each}"' for each in ports)
            pool = f'[pool]\nlisten = "127.0.0.1:{port}"\npeers = [{peers}]\ndead_after_s = {DEAD_AFTER_S}\n\n'
            links = link(primary.port, selector("roam/#", qos=2, writes="forward"))
            node = Node(directory, role="secondary", name=f"edge-{number + 1}", links=pool + links, log=False)
            members.append(stack.enter_context(node))
        for node in members:
            wait_for(lambda node=node: _is_ready(node), what=f"{node.name} knowing the pool")  # type: ignore[misc]
        yield members, stack.enter_context(Balancer(directory, members))


def _is_ready(node: Node) -> bool:
    ready: bool = node.get("/v1/pool").json()["ready"]
    return ready
