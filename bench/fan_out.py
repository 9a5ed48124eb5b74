"""A burst through the link to many subscribers, beside a Mosquitto bridge."""

from __future__ import annotations

import argparse
from functools import partial

from bench.arguments import at_least, choices, numbers
from bench.report import Ask, Report, Row, alternate, medians, ratio, rows
from bench.stage import (
    BARE,
    BRIDGE,
    BRIDGE_TLS,
    COPIES,
    LABELS,
    NO_COPIES,
    OURS,
    OURS_TLS,
    RELAY,
    SESSIONS,
    VALUES,
    Run,
    Side,
    Stage,
    bridges,
    burst,
)

__all__ = ["add_arguments", "run"]

_ASKED = {0: {1: 1.0, 10: 5.0, 100: 40.0, 1000: 100.0}, 1: {1: 1.0, 10: 3.0, 100: 20.0, 1000: 40.0}}
"""Delivered per second, ours divided by the bridge's, by QoS and number of subscribers."""
_LOG_LEAVES = 0.9
"""Part of the deliveries per second without a replication log that must be left with one."""
_SESSIONS_LEAVE = 0.85
"""Part of the deliveries per second to durable sessions in memory that must be left with them on disk."""
_COPIES_LEAVE = 0.9
"""Part of a member's deliveries per second to durable sessions that must be left with copies of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--subscribers", type=numbers(1), default="1,10,100,1000", help="numbers of subscribers (1,10,100,1000)"
    )
    parser.add_argument(
        "--qos", type=choices("0", "1"), default="0,1", help="QoS of publisher, hop and subscribers: 0, 1 or both (0,1)"
    )
    parser.add_argument(
        "--log", type=choices("on", "off"), default="on", help="replication log of ours: on, off or on,off (on)"
    )
    parser.add_argument(
        "--deliveries", type=at_least(1), default=2_000_000, help="aimed-at deliveries of a burst (2000000)"
    )
    parser.add_argument("--bursts", type=at_least(1), default=1, help="bursts of a run, without a pause (1)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--messages-min", type=at_least(1), default=2_000, help="fewest messages of a burst (2000)")
    parser.add_argument("--tls", action="store_true", help="also measure both with TLS to the primary")
    parser.add_argument(
        "--durable", action="store_true", help="durable sessions, at a secondary with sessions on disk and one without"
    )
    parser.add_argument(
        "--pool-copies",
        type=choices("on", "off"),
        default=(),
        help="durable sessions, at a member of a pool with copies of them: on, off or on,off",
    )
    parser.add_argument(
        "--self-test", action="store_true", help="also measure the load generator, with a relay as the server"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measure ours and the bridges alternately, for each QoS and number of subscribers."""
    names = [{"on": OURS, "off": BARE}[one] for one in arguments.log]
    names += [*bridges(), *([RELAY] if arguments.self_test else []), *((OURS_TLS, BRIDGE_TLS) if arguments.tls else ())]
    if arguments.durable:
        names = [VALUES, SESSIONS]
    if arguments.pool_copies:
        names = [{"on": COPIES, "off": NO_COPIES}[one] for one in arguments.pool_copies]
    results: list[Row] = []
    for qos in map(int, arguments.qos):
        with Stage(qos=qos, tls=arguments.tls) as stage, stage.sides(*names) as sides:
            for subscribers in arguments.subscribers:
                results += _compare(sides, subscribers, qos, arguments)
    bursts = "one burst," if arguments.bursts == 1 else f"{arguments.bursts} bursts in a row, each"
    title = f"{bursts} until every subscriber has all of it; medians of {arguments.runs} alternating runs"
    return Report("fanout", title, tuple(results))


def _compare(sides: dict[str, Side], subscribers: int, qos: int, arguments: argparse.Namespace) -> list[Row]:
    messages = max(arguments.messages_min, min(100_000, arguments.deliveries // subscribers))

    def one(side: Side) -> Run:
        return burst(
            side,
            subscribers=subscribers,
            qos=qos,
            messages=messages,
            payload_bytes=arguments.payload_bytes,
            durable=arguments.durable or bool(arguments.pool_copies),
            bursts=arguments.bursts,
        )

    runs = alternate(arguments.runs, {name: partial(one, side) for name, side in sides.items()})
    speeds = {name: medians(results).delivered_per_s for name, results in runs.items()}
    peer, limit = speeds.get(BRIDGE), speeds.pop(RELAY, None)
    asked: dict[str, tuple[Ask, ...]] = {}
    if peer is not None and subscribers in _ASKED[qos]:
        for name in {OURS, BARE} & set(sides):
            at_least = _ASKED[qos][subscribers]
            asked[name] = (Ask("times the bridge", ratio(speeds[name], peer), at_least=at_least),)
    if SESSIONS in sides:
        asked[SESSIONS] = (
            Ask("times that without", ratio(speeds[SESSIONS], speeds[VALUES]), at_least=_SESSIONS_LEAVE),
        )
    if {COPIES, NO_COPIES} <= set(sides):
        without = ratio(speeds[COPIES], speeds[NO_COPIES])
        asked[COPIES] = (Ask("times that without copies", without, at_least=_COPIES_LEAVE),)
    if {OURS, BARE} <= set(sides):
        with_log = Ask("times that without the log", ratio(speeds[OURS], speeds[BARE]), at_least=_LOG_LEAVES)
        asked[OURS] = (*asked.get(OURS, ()), with_log)
    if limit is not None:
        asked[RELAY] = (Ask("times the fastest", ratio(limit, max(speeds.values())), at_least=1.0),)
    case = {"QoS": qos, "subscribers": subscribers, "messages": messages * arguments.bursts}
    return rows(case, runs, labels=LABELS, asked=asked)
