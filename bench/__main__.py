"""The command line of the benchmarks: `python -m bench NAME`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from bench.arguments import at_least
from bench.processes import find_mosquitto
from bench.readers import allow_connections

BENCHES = {
    "fanout": "bench.fan_out",
    "qos2": "bench.exactly_once",
    "steady": "bench.steady",
    "light": "bench.light",
    "snapshot": "bench.snapshot",
    "join": "bench.join",
    "slow": "bench.slow",
    "thin-line": "bench.thin_line",
    "teardown": "bench.teardown",
    "scale": "bench.scale",
    "capacity": "bench.capacity",
    "disc": "bench.disc",
    "sessions": "bench.sessions",
    "path": "bench.path",
    "members": "bench.members",
    "jms": "bench.jms",
    "chaos": "bench.chaos.command",
    "roaming": "bench.roaming.command",
    "takeover": "bench.takeover.command",
    "kills": "bench.kills",
    "attack": "bench.attack",
    "simulate": "bench.simulate.command",
    "reports": "bench.reports",
    "report-cost": "bench.report_cost",
}
"""By name: the module with `add_arguments(parser)` and `run(arguments) -> Report`; its docstring's first line says what
it measures."""


def _machine() -> dict[str, object]:
    binary = find_mosquitto()
    version = subprocess.run([binary, "-h"], capture_output=True, text=True, check=False).stdout if binary else ""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "mosquitto": version.partition("\n")[0].removeprefix("mosquitto version "),
    }


def command_line(names: Iterable[str] = BENCHES) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of these benchmarks; others are not imported."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure fanout beside real peers, in one run."
    )
    benches = parser.add_subparsers(required=True, metavar="NAME")
    for name in names:
        module = importlib.import_module(BENCHES[name])
        bench = benches.add_parser(name, help=str(module.__doc__).partition("\n")[0])
        module.add_arguments(bench)
        if getattr(module, "REPEATED", True):
            bench.add_argument("--runs", type=at_least(1), default=3, help="runs of each side, in turn (3)")
        bench.add_argument("--json", type=Path, help="also write the results to this file")
        bench.set_defaults(run=module.run)
    return parser


def perform(words: Sequence[str]) -> int:
    """Run the benchmark that the words of a command line name, show its report, and return the exit code."""
    parser = command_line(words[:1] if words[:1] and words[0] in BENCHES else BENCHES)
    arguments = parser.parse_args(words)
    allow_connections()
    machine = _machine()
    try:
        report = arguments.run(arguments)
    except argparse.ArgumentTypeError as error:  # options that do not go together
        parser.error(str(error))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(report.table())
    console.print(
        f"Mosquitto {machine['mosquitto']}, Python {machine['python']}, {machine['cores']} cores, "
        f"load average before {machine['load']:.1f}"
    )
    if arguments.json:
        document = {**report.document(), "machine": machine}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return int(getattr(report, "exit_code", 0))


def main() -> None:
    """Run the benchmark that the command line names."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: every process is ended
    with tempfile.TemporaryDirectory(prefix="fanout-bytecode-") as bytecode:
        # As installed programs do, a node starts from compiled code, whatever this environment says; its first start
        # compiles, unless the environment says where to find such code.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ.setdefault("PYTHONPYCACHEPREFIX", bytecode)
        code = perform(sys.argv[1:])
    sys.exit(code)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
