"""`python -m tests.conformance mosquitto SOURCE` and so on; for the suites see docs/reference/conformance.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conformance import mosquitto_suite, paho_suite

__all__ = ["main"]


def main() -> None:
    """Run the suite that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    one = suites.add_parser("mosquitto", help="broker tests of the source of Mosquitto")
    one.add_argument("source", type=Path, help="its directory")
    one.add_argument("--only", default="", help="run the scripts whose names begin so")
    one = suites.add_parser("paho-python", help="tests/test_mqttv5.py of the source of paho-mqtt")
    one.add_argument("source", type=Path, help="its directory")
    arguments = parser.parse_args()
    if arguments.suite == "paho-python":
        sys.exit(paho_suite.run(arguments.source))
    sys.exit(_run_mosquitto(arguments.source, arguments.only))


def _run_mosquitto(source: Path, only: str) -> int:
    passed = differences = failed = 0
    for result in mosquitto_suite.run(source, only=only):
        if result.passed:
            passed += 1
            _say(f"passed  {result.script}")
        elif result.difference:
            differences += 1
            _say(f"differs {result.script}: {result.difference}")
        else:
            failed += 1
            _say(f"FAILED  {result.script}\n{result.output[-2000:]}")
    _say(f"{passed} passed, {failed} failed, {differences} expect what the specification does not ask for")
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
