"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.capacity import measure
from bench.fan_out import compare
from bench.processes import find_mosquitto


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _machine() -> dict[str, str]:
    binary = find_mosquitto()
    version = subprocess.run([binary, "-h"], capture_output=True, text=True, check=False).stdout if binary else ""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "mosquitto": version.partition("\n")[0].removeprefix("mosquitto version "),
    }


def _fan_out(arguments: argparse.Namespace) -> None:
    results = compare(
        subscribers=arguments.subscribers,
        qos=arguments.qos,
        runs=arguments.runs,
        deliveries=arguments.deliveries,
        payload_bytes=arguments.payload_bytes,
    )
    machine = _machine()
    table = Table(
        title=f"fanout: burst at QoS {arguments.qos} through a secondary and a Mosquitto "
        f"{machine['mosquitto']} bridge, "
        f"medians of {arguments.runs} alternating runs"
    )
    for column in (
        "subscribers",
        "messages",
        "ours delivered/s",
        "bridge delivered/s",
        "ratio",
        "ours CPU s/M",
        "bridge CPU s/M",
        "ours MiB",
        "bridge MiB",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            f"{result.subscribers:,}",
            f"{result.messages:,}",
            f"{result.ours.delivered_per_s:,.0f}",
            f"{result.peer.delivered_per_s:,.0f}",
            f"{result.ratio:.2f}x",
            f"{result.ours.cpu_s_per_million:.3f}",
            f"{result.peer.cpu_s_per_million:.3f}",
            f"{result.ours.resident_mib:.0f}",
            f"{result.peer.resident_mib:.0f}",
        )
    Console().print(table)
    if arguments.json:
        document = {
            "bench": "fanout",
            "machine": machine,
            "results": [result.as_dict() for result in results],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def _capacity(arguments: argparse.Namespace) -> None:
    costs = measure(
        connections=arguments.connections,
        sessions=arguments.sessions,
        queued=arguments.queued,
        payload_bytes=arguments.payload_bytes,
    )
    table = Table(title="fanout: what one costs a node")
    for column in ("what", "count", "bytes each", "MiB", "CPU us each", "CPU s"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for cost in costs:
        table.add_row(
            cost.what,
            f"{cost.count:,}",
            f"{cost.bytes_each:,.0f}",
            f"{cost.resident_bytes / 2**20:.1f}",
            f"{cost.cpu_us_each:,.1f}",
            f"{cost.cpu_s:.2f}",
        )
    Console().print(table)
    if arguments.json:
        document = {"bench": "capacity", "machine": _machine(), "results": [cost.as_dict() for cost in costs]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure fanout beside real peers, in one run."
    )
    benches = parser.add_subparsers(required=True, metavar="NAME")
    fan_out = benches.add_parser("fanout", help="a burst to many subscribers, beside a Mosquitto bridge")
    fan_out.add_argument("--subscribers", type=_numbers, default=[1, 10, 100], help="numbers of subscribers (1,10,100)")
    fan_out.add_argument("--qos", type=int, choices=(0, 1), default=0, help="QoS of publisher, hop and subscribers (0)")
    fan_out.add_argument("--runs", type=int, default=3, help="runs of each side (3)")
    fan_out.add_argument("--deliveries", type=int, default=2_000_000, help="aimed-at deliveries of a run (2000000)")
    fan_out.add_argument("--payload-bytes", type=int, default=64, help="size of a payload (64)")
    fan_out.add_argument("--json", type=Path, help="also write the results to this file")
    fan_out.set_defaults(run=_fan_out)
    capacity = benches.add_parser("capacity", help="memory of connections, durable sessions and waiting messages")
    capacity.add_argument("--connections", type=int, default=5_000, help="idle connections (5000)")
    capacity.add_argument("--sessions", type=int, default=2_000, help="durable sessions without a connection (2000)")
    capacity.add_argument("--queued", type=int, default=100, help="messages that wait for each session (100)")
    capacity.add_argument("--payload-bytes", type=int, default=64, help="size of a payload (64)")
    capacity.add_argument("--json", type=Path, help="also write the results to this file")
    capacity.set_defaults(run=_capacity)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
