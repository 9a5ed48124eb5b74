"""Attacks: each of `bench.attacks` against a started node, a verdict a line; exit code 1 when one does not hold."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.arguments import above_0
from bench.attacks.target import Target
from bench.processes import Node
from bench.report import Report, Row

__all__ = ["ATTACKS", "REPEATED", "AttackReport", "add_arguments", "run"]

REPEATED = False
"""Its command has no `--runs`."""
ATTACKS: Final = ("memory_before_connect", "passwords", "user_properties", "wills", "http_flood")
"""Modules of `bench.attacks`, in the order in which they run."""
_USERS: Final = ("ordinary", "attacker")
_PASSWORD: Final = "a password of the benchmark"


@dataclass(frozen=True, slots=True)
class AttackReport(Report):
    """The verdicts."""

    exit_code: int = 0
    """1 when one does not hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--scale", type=above_0, default=1.0, help="size of the attacks; 0.1 for a quick form (1)")
    parser.add_argument(
        "--patience", type=above_0, default=1.0, help="times that are promised, times this, beside other work (1)"
    )
    parser.add_argument("--only", choices=ATTACKS, action="append", help="this attack only; may be given again")


def run(arguments: argparse.Namespace) -> AttackReport:
    """Attack a `fanout primary` of its own with each."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="fanout-attack-") as directory:
        users = Path(directory) / "users"
        for user in _USERS:
            command = [sys.executable, "-m", "fanout", "passwd", str(users), user]
            subprocess.run(command, input=f"{_PASSWORD}\n", text=True, check=True, capture_output=True)
        for name in arguments.only or ATTACKS:
            scratch = Path(directory) / name
            scratch.mkdir()
            rows.append(_attack(name, scratch, users, scale=arguments.scale, patience=arguments.patience))
    title = "attacks from other addresses on a node, beside an ordinary client"
    failed = any(row.figures["verdict"] != "holds" for row in rows)
    return AttackReport("attack", title, tuple(rows), exit_code=int(failed))


def _attack(name: str, scratch: Path, users: Path, *, scale: float, patience: float) -> Row:
    settings = f'[access]\npassword_file = "{users}"\n'
    with Node(scratch, role="primary", name="target", settings=settings) as node:
        assert node.process is not None
        target = Target(
            port=node.port,
            http_port=node.http_port,
            pid=node.process.pid,
            users=dict.fromkeys(_USERS, _PASSWORD),
            scale=scale,
            patience=patience,
        )
        verdict = asyncio.run(importlib.import_module(f"bench.attacks.{name}").run(target))
    measured = ", ".join(f"{figure} {value:g}" for figure, value in verdict.figures.items())
    return Row(
        {
            "attack": name.replace("_", " "),
            "verdict": "holds" if verdict.held else "BROKEN",
            "promise": verdict.promise,
            "measured": measured,
        }
    )
