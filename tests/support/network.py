"""What stands between a client and a server: a proxy that cuts, pauses and throttles, and what is under way.

The proxy is that of the benchmarks.
"""

from __future__ import annotations

from pathlib import Path

from bench.proxy import Proxy

__all__ = ["Proxy", "unread_bytes"]


def unread_bytes(port: int) -> int:
    """Return how many bytes that were sent to an IPv4 port of this machine its server has not read yet."""
    unread = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sending, receiving = (int(number, 16) for number in queues.split(":"))
        if int(local.rpartition(":")[2], 16) == port:
            unread += receiving
        if int(remote.rpartition(":")[2], 16) == port:
            unread += sending
    return unread
