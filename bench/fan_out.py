"""`python -m bench fanout`: one burst through our secondary and through a Mosquitto bridge.

Both stand beside one Mosquitto primary. A run publishes a burst at the primary and ends when every subscriber
of the server under test has every message. Runs alternate between ours and the peer. Queues of both Mosquittos
are unlimited, so that nothing is dropped and both must deliver all.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.load import Subscribers, burst, connect, publish_burst
from bench.processes import Mosquitto, Node, Server, link, selector, wait_for
from fanout.mqtt.packets import Subscribe, Subscription, encode
from fanout.mqtt.publish import encode_publish

__all__ = ["Comparison", "Run", "compare"]

_UNLIMITED = ("max_queued_messages 0", "max_inflight_messages 0")
_TOPICS = 1000
_PROBE = encode_publish(b"probe", b"through", version=4)


@dataclass(frozen=True, slots=True)
class Run:
    """One burst through one server."""

    delivered_per_s: float
    """Messages times subscribers, divided by the time from the first write to the last delivery."""
    cpu_s_per_million: float
    """CPU seconds of the server under test for a million deliveries."""
    resident_mib: float
    """Highest resident set size of the server under test so far, in MiB."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and the peer at one number of subscribers: medians over the runs."""

    subscribers: int
    qos: int
    messages: int
    ours: Run
    peer: Run
    ratio: float
    """Ours divided by the peer's, delivered per second."""

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)


def _median(runs: list[Run]) -> Run:
    return Run(
        median(run.delivered_per_s for run in runs),
        median(run.cpu_s_per_million for run in runs),
        median(run.resident_mib for run in runs),
    )


def _one_run(primary: Server, server: Server, *, subscribers: int, qos: int, messages: int, payload_bytes: int) -> Run:
    packets = burst(messages, topics=_TOPICS, payload_bytes=payload_bytes, qos=qos)
    with Subscribers(server.port, count=subscribers, qos=qos, payload_bytes=payload_bytes) as readers:
        publisher = connect(primary.port, "bench-publisher")
        before = server.usage()
        readers.expect(messages)
        started = time.monotonic()
        publish_burst(publisher, packets, messages=messages, qos=qos)
        seconds = readers.wait() - started
        after = server.usage()
        publisher.close()
    deliveries = messages * subscribers
    return Run(
        deliveries / seconds,
        (after.cpu_s - before.cpu_s) / deliveries * 1e6,
        after.resident_bytes_max / 2**20,
    )


def _bridge(scratch: Path, primary: Server, *, qos: int) -> Server:
    return Mosquitto(
        scratch,
        name="bridge",
        settings=[
            *_UNLIMITED,
            "connection bench",
            f"address 127.0.0.1:{primary.port}",
            f"topic # in {qos}",
            # MQTT 3.1.1: with an unlimited window its MQTT 5 bridge sends Receive Maximum 0, which the primary refuses.
            "bridge_protocol_version mqttv311",
            "notifications false",
            "restart_timeout 1",
        ],
    )


def _wait_bridged(primary: Server, server: Server) -> None:
    """Return once a message published at the primary comes out of `server`."""
    reader, writer = connect(server.port, "bench-probe-reader"), connect(primary.port, "bench-probe-writer")
    try:
        reader.sendall(encode(Subscribe(packet_id=1, subscriptions=(Subscription(b"probe", 0),)), version=4))
        reader.settimeout(0.2)

        def arrives() -> bool:
            writer.sendall(_PROBE)
            try:
                return _PROBE in reader.recv(4096)
            except TimeoutError:
                return False

        wait_for(arrives, what="the server under test forwarding from the primary")
    finally:
        reader.close()
        writer.close()


def compare(*, subscribers: list[int], qos: int, runs: int, deliveries: int, payload_bytes: int) -> list[Comparison]:
    """Measure ours and the Mosquitto bridge alternately.

    Args:
        subscribers: Numbers of subscribers to measure.
        qos: QoS of the publisher, the hop and the subscribers.
        runs: Runs of each side at each number; the medians are returned.
        deliveries: Aimed-at deliveries of one run; a burst has between 2 000 and 100 000 messages.
        payload_bytes: Size of each payload.
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="fanout-bench-") as name:
        scratch = Path(name)
        with Mosquitto(scratch, name="primary", settings=_UNLIMITED) as primary:
            ours = Node(scratch, role="secondary", name="ours", links=link(primary.port, selector("#", qos=qos)))
            with ours, _bridge(scratch, primary, qos=qos) as peer:
                ours.wait_ready()
                _wait_bridged(primary, peer)
                for count in subscribers:
                    messages = max(2_000, min(100_000, deliveries // count))
                    measured: dict[str, list[Run]] = {"ours": [], "peer": []}
                    for _ in range(runs):
                        for side, server in (("ours", ours), ("peer", peer)):
                            measured[side].append(
                                _one_run(
                                    primary,
                                    server,
                                    subscribers=count,
                                    qos=qos,
                                    messages=messages,
                                    payload_bytes=payload_bytes,
                                )
                            )
                    mine, theirs = _median(measured["ours"]), _median(measured["peer"])
                    ratio = mine.delivered_per_s / theirs.delivered_per_s
                    results.append(Comparison(count, qos, messages, mine, theirs, ratio))
    return results
