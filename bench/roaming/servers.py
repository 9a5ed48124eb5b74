"""The servers of a roaming run: a Mosquitto, the members of a pool, and an HAProxy in front of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Mosquitto, Node, Server, free_port, link, pool_section, selector, wait_for
from bench.roaming.paths import Paths
from bench.stage import ON_DISK, SESSIONS

__all__ = ["DEAD_AFTER_S", "Balancer", "Servers", "find_haproxy", "pool_behind_haproxy"]

DEAD_AFTER_S = 3.0
"""`pool.dead_after_s` of the members: silence after which the others go on with their sessions."""

_HAPROXY = """\
defaults
    mode tcp
    timeout connect 1s
    timeout check {patience_s}s
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
    default-server check inter 200ms fall {fall} rise 1 on-marked-down shutdown-sessions
"""


def find_haproxy() -> str | None:
    """Return the path of HAProxy, or None when the machine has none."""
    return shutil.which("haproxy", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


class Balancer(Server):
    """An HAProxy that gives each connection to the next member, whoever comes."""

    def __init__(
        self, directory: Path, members: Sequence[Node], *, name: str = "haproxy", is_patient: bool = False
    ) -> None:
        """Describe it.

        Args:
            directory: For its configuration and log; must exist.
            members: They get the connections.
            name: Of these files.
            is_patient: True if a member that answers late is not taken for one that is away.

        Raises:
            RuntimeError: The machine has no HAProxy.
        """
        binary = find_haproxy()
        if binary is None:
            raise RuntimeError("HAProxy was not found. On Debian or Ubuntu: sudo apt-get install haproxy")
        self._path = directory / f"{name}.cfg"
        self._members, self._is_patient = members, is_patient
        super().__init__([binary, "-db", "-f", str(self._path)], log=directory / f"{name}.log", port=free_port())

    def _prepare(self) -> None:
        servers = [f"    server {each.name} {each.host}:{each.port} port {each.http_port}" for each in self._members]
        self._path.write_text("\n".join([self._head(), *servers]) + "\n")

    def _head(self) -> str:
        patience_s, fall = (10, 3) if self._is_patient else (1, 1)
        return _HAPROXY.format(port=self.port, patience_s=patience_s, fall=fall)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run."""

    primary: Server
    """The primary of all."""
    members: Sequence[Node]
    """Members of the pool."""
    balancer: Balancer
    """In front of them."""
    paths: Paths | None
    """The ways between them; None where nothing stands on them."""
    on_disc: Node | None
    """The member whose sessions survive its process; None without one."""


@contextlib.contextmanager
def pool_behind_haproxy(
    directory: Path,
    *,
    size: int,
    has_paths: bool = False,
    has_disc: bool = False,
    pool_settings: str = "",
    settings: str = "",
    is_patient: bool = False,
) -> Iterator[Servers]:
    """Run a pool of `size` members that know each other, and the HAProxy in front of it.

    Args:
        directory: For all files; must exist.
        size: Number of members.
        has_paths: True if the ways between members, and to the primary, can be cut.
        has_disc: True if the first member keeps values and sessions on its disk.
        pool_settings: Further lines for `[pool]`.
        settings: Further lines for `[server]`.
        is_patient: True if HAProxy does not take a member that answers late for one that is away.
    """
    with contextlib.ExitStack() as stack:
        # A member that is away for a while must not lose what it would have got.
        unlimited = ["max_queued_messages 0", "max_inflight_messages 0", "max_inflight_bytes 0"]
        primary = stack.enter_context(Mosquitto(directory, settings=unlimited))
        ports = [free_port() for _ in range(size)]
        paths = stack.enter_context(Paths(primary.port, ports)) if has_paths else None
        members = []
        for number, port in enumerate(ports):
            asked = [
                port if paths is None or other == number else paths.peer_port(number, other)
                for other, port in enumerate(ports)
            ]
            pool = pool_section(port, asked, settings=f"dead_after_s = {DEAD_AFTER_S}\n{pool_settings}")
            primary_port = primary.port if paths is None else paths.primary_port(number)
            links = link(primary_port, selector("roam/#", qos=2, writes="forward"))
            storage = ON_DISK[SESSIONS] if has_disc and not number else ""
            node = Node(
                directory,
                role="secondary",
                name=f"edge-{number + 1}",
                links=storage + pool + links,
                settings=settings,
                log=False,
            )
            members.append(stack.enter_context(node))
        for node in members:
            wait_for(lambda node=node: _is_ready(node), what=f"{node.name} knowing the pool")  # type: ignore[misc]
        balancer = stack.enter_context(Balancer(directory, members, is_patient=is_patient))
        yield Servers(primary, members, balancer, paths, members[0] if has_disc else None)


def _is_ready(node: Node) -> bool:
    ready: bool = node.get("/v1/pool").json()["ready"]
    return ready
