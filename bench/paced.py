"""Updates at an even rate to a number of subscribers, and how long each took: shared by the benches of latency.

A few subscribers in a process of their own, which reads at once, measure latencies; all others only count.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bench.load import connect, publish_paced
from bench.readers import Audience, Readers
from bench.report import percentile
from bench.stage import Side

__all__ = ["PacedRun", "latencies_until", "paced"]

_PIECE_S = 0.25


@dataclass(frozen=True, slots=True)
class PacedRun:
    """One run at one server."""

    p50_ms: float
    """Half of the latencies are not above this: from the publisher's write to the subscriber's read."""
    p99_ms: float
    """99 % of the latencies are not above this."""
    latency_ms_max: float
    """The highest latency."""
    cpu_s: float
    """CPU seconds of the server under test."""
    cpu_s_per_million: float
    """CPU seconds of the server under test for a million deliveries."""
    delivered: float
    """Messages that the subscribers got."""
    expected: float
    """Messages that they should have got."""

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        return {
            "p50 ms": self.p50_ms,
            "p99 ms": self.p99_ms,
            "max ms": self.latency_ms_max,
            "CPU s": self.cpu_s,
            "CPU s per million": self.cpu_s_per_million,
        }


def paced(side: Side, *, subscribers: int, samples: int, per_s: float, seconds: float, payload_bytes: int) -> PacedRun:
    """Publish at QoS 0 at `per_s` for `seconds`, and wait until all subscribers have everything.

    Args:
        side: The server under test.
        subscribers: Number of them.
        samples: Number of those that take latencies; at least one does.
        per_s: Updates a second.
        seconds: For how long.
        payload_bytes: Size of each payload.
    """
    messages = max(1, round(per_s * seconds))
    samples = max(1, min(samples, subscribers))
    size = side.packet_bytes(payload_bytes=payload_bytes, qos=0)
    kinds = [Audience(side.server.port, side.name, samples, size, latencies=True, name="bench-sampled")]
    if subscribers > samples:
        kinds.append(Audience(side.server.port, side.name, subscribers - samples, size, name="bench-counting"))
    with ExitStack() as ends:
        readers = [ends.enter_context(Readers(kind)) for kind in kinds]
        publisher = connect(side.publish_port, "bench-publisher")
        ends.callback(publisher.close)
        before = side.server.usage()
        for one in readers:
            one.expect(messages)
        publish_paced(publisher, messages=messages, per_s=per_s, root=side.name, payload_bytes=payload_bytes)
        arrivals = [one.wait() for one in readers]
        cpu_s = side.server.usage().cpu_s - before.cpu_s
    latencies, expected = arrivals[0].latencies_s, messages * subscribers
    return PacedRun(
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        latency_ms_max=max(latencies) * 1e3,
        cpu_s=cpu_s,
        cpu_s_per_million=cpu_s / expected * 1e6,
        delivered=sum(one.delivered for one in arrivals),
        expected=expected,
    )


def latencies_until(
    done: Callable[[], bool],
    *,
    live: Readers,
    publisher: socket.socket,
    per_s: float,
    root: str,
    payload_bytes: int,
    deadline_s: float,
) -> list[float]:
    """Publish at QoS 0 at `per_s` until something is done, and return how long each update took, in seconds.

    Args:
        done: True if it is; asked a few times a second.
        live: One subscriber of the updates, which takes latencies.
        publisher: Its connection to where the updates are published.
        per_s: Updates a second.
        root: First level of their topics.
        payload_bytes: Size of each payload.
        deadline_s: After how many seconds to end although it is not done.
    """
    piece = max(1, round(per_s * _PIECE_S))
    until = time.monotonic() + deadline_s
    latencies_s: list[float] = []
    outstanding = 0
    while not (done() and (latencies_s or outstanding)) and time.monotonic() < until:  # one piece at least
        live.expect(piece)
        publish_paced(publisher, messages=piece, per_s=per_s, root=root, payload_bytes=payload_bytes)
        outstanding += 1
        while live.done:
            latencies_s += live.wait().latencies_s
            outstanding -= 1
    for _ in range(outstanding):
        latencies_s += live.wait().latencies_s
    return latencies_s
