"""Ports that several processes share (SO_REUSEPORT), and the check that all of them are members of one pool.

Linux lets any process of the same user join a port that is shared. So each process *claims* its listening sockets:
a claim is a Unix socket in the abstract namespace, whose name has the inode of the listening socket and the address
at which the process answers the members of its pool. The kernel removes it with the process, and its namespace is that
of the ports. A socket at the port that no member has claimed is a stranger's.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from fanout.config import Address, PoolConfig

__all__ = ["SharedPort"]

_Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLAIM: Final = "fanout-listener"
_LISTENING: Final = "0A"
"""State of a listening socket in `/proc/net/tcp`."""
_TABLES: Final = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_CLAIMS: Final = Path("/proc/net/unix")


class SharedPort:
    """The listening sockets of one process at ports that it shares, with their claims."""

    def __init__(self, pool: PoolConfig) -> None:
        """Prepare; nothing is claimed yet.

        Args:
            pool: The section `[pool]`: its own address, and those of the other members.
        """
        self._own = pool.listen
        self._members = (pool.listen, *pool.peers)
        self._claims: list[socket.socket] = []

    def claim(self, listening: socket.socket) -> None:
        """Make a socket share its port, and claim it; called before it is bound.

        Raises:
            OSError: The system refuses it.
        """
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._claims.append(claim)
        claim.bind(f"\0{_CLAIM}/{os.fstat(listening.fileno()).st_ino}/{self._own.authority}")

    def has_stranger(self, bound: Sequence[socket.socket]) -> bool:
        """Return True if a socket listens at the port of one of these, and no member of the pool has claimed it."""
        claimed = {inode for inode, address in _claims() if any(_is_at(member, address) for member in self._members)}
        for own in bound:
            host, port = own.getsockname()[:2]
            for inode, other in _listening(port, version=6 if own.family == socket.AF_INET6 else 4):
                if inode not in claimed and _overlap(ipaddress.ip_address(host.partition("%")[0]), other):
                    return True
        return False

    def release(self) -> None:
        """Give up all claims, after the listening sockets are closed."""
        for claim in self._claims:
            claim.close()
        self._claims.clear()


def _is_at(member: Address, address: str) -> bool:
    """Return True if a process that answers members at `address` may be this member."""
    host, _, port = address.rpartition(":")
    if port != str(member.port):
        return False
    ours, theirs = (_ip(each.strip("[]")) for each in (member.host, host))
    return ours is None or theirs is None or _overlap(ours, theirs)


def _ip(host: str) -> _Ip | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name, which may have any address
        return None


def _overlap(a: _Ip, b: _Ip) -> bool:
    return a == b or a.is_unspecified or b.is_unspecified


def _claims() -> Iterator[tuple[int, str]]:
    """Yield the inode of each claimed socket, with the address at which its process answers members."""
    for line in _CLAIMS.read_text(errors="replace").splitlines():
        name, _, claim = line.rpartition(" ")[2].partition("/")
        inode, _, address = claim.partition("/")
        if name == f"@{_CLAIM}" and inode.isdigit():
            yield int(inode), address


def _listening(port: int, *, version: int) -> Iterator[tuple[int, _Ip]]:
    """Yield the inode and the address of each socket that listens at a port."""
    for line in _TABLES[version].read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        host, _, digits = local.partition(":")
        if state == _LISTENING and int(digits, 16) == port:
            words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]  # each in host byte order
            packed = b"".join(word.to_bytes(4, "little") for word in words)
            yield int(inode), ipaddress.ip_address(packed)
