"""Cost of an update and of a delivery as topics and subscribers grow; ours only."""

from __future__ import annotations

import argparse

from bench.arguments import at_least, numbers
from bench.report import Ask, Report, Row, medians, ratio, rows
from bench.stage import LABELS, OURS, Run, Stage, burst

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--topics", type=numbers(1), default="1000,10000,100000,1000000", help="numbers of retained topics (10^3..10^6)"
    )
    parser.add_argument(
        "--subscribers", type=numbers(1), default="1,10,100,1000,5000", help="numbers of subscribers (1..5000)"
    )
    parser.add_argument("--topics-beside", type=at_least(1), default=1_000, help="topics while subscribers grow (1000)")
    parser.add_argument("--subscribers-beside", type=at_least(1), default=10, help="subscribers while topics grow (10)")
    parser.add_argument(
        "--deliveries", type=at_least(1), default=2_000_000, help="aimed-at deliveries of a run (2000000)"
    )
    parser.add_argument("--messages-min", type=at_least(1), default=2_000, help="fewest messages of a burst (2000)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure bursts with more and more topics, then with more and more subscribers."""
    topics = [(number, arguments.subscribers_beside) for number in arguments.topics]
    subscribers = [(arguments.topics_beside, number) for number in arguments.subscribers]
    title = f"bursts at QoS 0 over retained topics; medians of {arguments.runs} runs"
    return Report(
        "scale", title, (*_series("topics", topics, arguments), *_series("subscribers", subscribers, arguments))
    )


def _series(grows: str, cases: list[tuple[int, int]], arguments: argparse.Namespace) -> list[Row]:
    results: list[Row] = []
    first: Run | None = None
    for topics, subscribers in cases:
        runs = _runs(topics, subscribers, arguments)
        middle = medians(runs)
        first = first or middle
        cost = ratio(middle.cpu_s_per_million, first.cpu_s_per_million)
        asked = (
            Ask(f"CPU per delivery, times that with {cases[0][grows == 'subscribers']:,} {grows}", cost, at_most=1.1),
        )
        messages = _messages(subscribers, arguments)
        case = {"topics": topics, "subscribers": subscribers, "messages": messages}
        results += rows({"grows": grows, **case}, {OURS: runs}, labels=LABELS, asked={OURS: asked})
    return results


def _messages(subscribers: int, arguments: argparse.Namespace) -> int:
    fewest, deliveries = int(arguments.messages_min), int(arguments.deliveries)
    return max(fewest, min(100_000, deliveries // subscribers))


def _runs(topics: int, subscribers: int, arguments: argparse.Namespace) -> list[Run]:
    with Stage() as stage:
        stage.load_retained(OURS, topics=topics, payload_bytes=arguments.payload_bytes)
        with stage.sides(OURS) as sides:
            return [
                burst(
                    sides[OURS],
                    subscribers=subscribers,
                    qos=0,
                    messages=_messages(subscribers, arguments),
                    payload_bytes=arguments.payload_bytes,
                    topics=topics,
                    retained=topics,
                )
                for _ in range(arguments.runs)
            ]
