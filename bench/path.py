"""The way of one update through a node, step by step: CPU of each at reads of several sizes; ours only, in process.

Each step gets what the step before made. Beside it stands the floor of the interpreter: the least that Python does for
such a step, as one loop without any rule. The rest of a hop is event loop, sockets and system.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from bench.arguments import at_least, numbers
from bench.load import publishes
from bench.report import Figures, Report, Row, medians
from fanout.link.ingest.convert import ConvertedRows, Converter
from fanout.mqtt.decoder import Decoder, PublishRow, PublishRun
from fanout.mqtt.delivery import Inbound
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Update
from fanout.selection import Selector
from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageQueue
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.session import Session

__all__ = ["add_arguments", "run"]

_VERSION = 5
_TOPICS = 1_000
_BYTES_MAX = 1 << 28
_NOW_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class _Steps:
    """CPU time of each step, in microseconds an update."""

    decode: float
    convert: float
    apply: float
    dispatch: float
    floor_decode: float
    floor_apply: float
    floor_dispatch: float

    def figures(self) -> Figures:
        """Return what a table shows of it, by column."""
        steps = {f"{field.name.replace('_', ', ')} us": getattr(self, field.name) for field in fields(self)[:4]}
        floor = self.floor_decode + self.floor_apply + self.floor_dispatch
        return {**steps, "all us": sum(steps.values()), "Python's floor us": floor}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--updates", type=at_least(1), default=200_000, help="updates of each run (200000)")
    parser.add_argument(
        "--reads", type=numbers(1), default="1,10,100,1000", help="updates in one read, several times (1,10,100,1000)"
    )
    parser.add_argument(
        "--subscribers", type=numbers(1), default="1,100", help="subscribers of everything, several times (1,100)"
    )
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--retain", action="store_true", help="retained updates of 1,000 topics")


def run(arguments: argparse.Namespace) -> Report:
    """Send updates through the steps, `runs` times for each size of reads and each number of subscribers."""
    lines = []
    for subscribers in arguments.subscribers:
        for size in arguments.reads:
            reads = list(_reads(arguments.updates // size, size, arguments))
            runs = [_measure(reads, subscribers) for _ in range(arguments.runs)]
            case = {"subscribers": subscribers, "updates a read": size}
            lines.append(Row({**case, **medians(runs).figures()}, runs=[asdict(each) for each in runs]))
    kind = "a retained update" if arguments.retain else "an update that is not retained"
    title = f"CPU of {kind}, QoS 0, by step; medians of {arguments.runs} runs"
    return Report("path", title, tuple(lines))


def _reads(count: int, size: int, arguments: argparse.Namespace) -> Iterator[bytes]:
    for start in range(0, count * size, size):
        yield publishes(
            size,
            root="bench",
            topics=_TOPICS,
            payload_bytes=arguments.payload_bytes,
            qos=0,
            retain=arguments.retain,
            start=start,
            version=_VERSION,
        )


def _measure(reads: Sequence[bytes], subscribers: int) -> _Steps:
    replica = Replica()
    converter = Converter(
        (Selector("bench/#"),), replica=replica, control_prefix=b"$fanout/node/link/", inbound=Inbound()
    )
    decoder = Decoder(version=_VERSION, packet_bytes_max=_BYTES_MAX, known_topics=replica.values, role="client")
    dispatcher, written = _served(subscribers)

    def decode(read: bytes) -> list[PublishRow]:
        (item,) = decoder.feed(read)
        assert isinstance(item, PublishRun)
        return item.rows

    def convert(rows: list[PublishRow]) -> ConvertedRows:
        return converter.convert(rows, now_ns=_NOW_NS)

    def apply(converted: ConvertedRows) -> Changes:
        return replica.apply(converted.updates, phase=Phase.LIVE)

    def dispatch(changes: Changes) -> None:
        dispatcher.dispatch(changes.dispatch, now_ns=_NOW_NS)

    rows, decode_us = _timed(decode, reads)
    converted, convert_us = _timed(convert, rows)
    changes, apply_us = _timed(apply, converted)
    _, dispatch_us = _timed(dispatch, changes)
    updates = sum(map(len, rows))
    assert sum(written) >= sum(map(len, reads)) * subscribers
    _, floor_decode_us = _timed(_floor_decode, reads)
    _, floor_apply_us = _timed(_floor_apply, converted)
    _, floor_dispatch_us = _timed(lambda each: _floor_dispatch(each, subscribers), converted)
    return _Steps(
        *(
            seconds / updates * 1e6
            for seconds in (
                decode_us,
                convert_us,
                apply_us,
                dispatch_us,
                floor_decode_us,
                floor_apply_us,
                floor_dispatch_us,
            )
        )
    )


def _timed(step: Callable[[Any], Any], inputs: Sequence[Any]) -> tuple[list[Any], float]:
    """Return what a step makes of each input, and the CPU seconds that it took."""
    begun = time.process_time()
    made = [step(each) for each in inputs]
    return made, time.process_time() - begun


def _served(subscribers: int) -> tuple[Dispatcher, list[int]]:
    """Return a dispatcher to sessions that take everything, and the sizes of what was written to them."""
    counters, written = Counters(), [0]
    index = AudienceIndex(in_flight_bytes_max=_BYTES_MAX)

    def write(data: bytes) -> None:
        written[0] += len(data)

    for number in range(subscribers):
        queue = MessageQueue(messages_max=1_000, bytes_max=_BYTES_MAX, overflow="disconnect")
        session = Session(f"client-{number}", wire=WireVariant(_VERSION), queue=queue, overflowed={}, counters=counters)
        index.change(session, added={b"bench/#": SubscriptionOptions(0)})
        session.connect(write, window=65_535)
    return Dispatcher(index, counters=counters), written


def _floor_decode(read: bytes) -> list[tuple[bytes, bytes, int]]:
    rows = []
    pos, end = 0, len(read)
    while pos < end:
        length = read[pos + 1]
        topic_end = pos + 4 + (read[pos + 2] << 8 | read[pos + 3])
        stop = pos + 2 + length
        rows.append((read[pos + 4 : topic_end], read[topic_end + 1 : stop], read[pos]))
        pos = stop
    return rows


def _floor_apply(converted: ConvertedRows) -> list[Update]:
    held: dict[bytes, Update] = {}
    updates = []
    for update in converted.updates:
        held[update[0]] = update
        updates.append((*update,))
    return updates


def _floor_dispatch(converted: ConvertedRows, subscribers: int) -> int:
    data = b"".join([b"".join((b"00", update[0], update[1])) for update in converted.updates])
    return sum(len(data) for _ in range(subscribers))
