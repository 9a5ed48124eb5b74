"""Updates at an even rate to a number of subscribers, and how long each took: shared by the benches of latency.

Latencies come from a few subscribers in a process of their own, which reads at once; all others only count.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from bench.load import connect, publish_paced
from bench.readers import Audience, Readers
from bench.report import percentile
from bench.stage import Side

__all__ = ["PacedRun", "paced"]


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
    """What the subscribers got, in messages."""
    expected: float
    """What they should have got."""

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
        subscribers: How many in all.
        samples: How many of them take latencies; at least one does.
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
