"""Attacks: each of `bench.attacks` against a node, a verdict a line; exit code 1 when one does not hold."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.arguments import above_0, at_least, existing_file
from bench.attacks.at_once import attack_at_once
from bench.attacks.target import Target, Verdict, can_attack
from bench.processes import Node, free_port, link, make_certificate, pool_section, selector
from bench.report import Report, Row
from fanout.access.passwords import hash_password

__all__ = ["ATTACKS", "AT_ONCE", "REPEATED", "AttackReport", "add_arguments", "run"]

REPEATED = False
"""Its command has no `--runs`."""
ATTACKS: Final = (
    "memory_before_connect",
    "passwords",
    "user_properties",
    "wills",
    "takeovers",
    "tls_handshakes",
    "http_flood",
    "http_requests",
    "agent_port",
    "sessions",
    "logs",
    "answers",
    "member",
)
"""Modules of `bench.attacks`, in the order in which they run."""
_OF_POOL: Final = ("member",)
_OF_FILES: Final = ("logs", "answers")
AT_ONCE: Final = tuple(name for name in ATTACKS if name not in {*_OF_POOL, *_OF_FILES})
"""Those of one node, which `--all-at-once` has."""
_USERS: Final = ("ordinary", "attacker")
_PASSWORD: Final = "a password of the benchmark"
_MEMBERS: Final = 3
_OF_STARTED: Final = ("http_port", "tls_port", "agent_port", "pool_port", "ca_file", "token_file", "password", "pid")
"""Options that tell of a started node."""


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
    parser.add_argument("--pool", action="store_true", help="all attacks on a member of a pool of three, without users")
    parser.add_argument("--all-at-once", action="store_true", help="all attacks on one node at the same time")
    parser.add_argument("--seconds", type=above_0, default=30.0, help="time of all at once, at least (30)")
    parser.add_argument(
        "--seconds-max", type=above_0, default=600.0, help="time after which all at once ends in any case (600)"
    )
    node = parser.add_argument_group("a started node on this machine, in place of one that the command starts")
    node.add_argument("--port", type=at_least(1, largest=65_535), help="port of its MQTT listener")
    for name, what in (
        ("http", "HTTP interface"),
        ("tls", "MQTT listener with TLS"),
        ("agent", "agent check"),
        ("pool", "listener for members"),
    ):
        node.add_argument(f"--{name}-port", type=at_least(1, largest=65_535), help=f"port of its {what}")
    node.add_argument("--ca-file", type=existing_file, help="CA of its HTTP interface, if that has TLS")
    node.add_argument("--token-file", type=existing_file, help="file with the token of its pool")
    node.add_argument("--password", help='password of its users "ordinary" and "attacker"; without, nobody has a user')
    node.add_argument("--pid", type=at_least(1), help="its process, whose memory is read")


def run(arguments: argparse.Namespace) -> AttackReport:
    """Attack a node with each, or with all at once.

    Raises:
        argparse.ArgumentTypeError: Something is told of a started node, but not its port.
    """
    for name in _OF_STARTED:
        if arguments.port is None and getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise argparse.ArgumentTypeError(f"--{option} is of a started node: give its --port too")
    with tempfile.TemporaryDirectory(prefix="fanout-attack-") as directory, contextlib.ExitStack() as ends:
        scratch = Path(directory)
        alone = _pool if arguments.pool else _node
        found: list[tuple[str, Verdict | None]] = []
        if arguments.all_at_once:
            with _apart():
                target = ends.enter_context(alone(arguments, scratch))
            found += attack_at_once(
                target,
                partial(_started, scratch / "decoy", arguments, has_users=bool(target.users)),
                [name for name in arguments.only or ATTACKS if name not in _OF_FILES and can_attack(name, target)],
                seconds=arguments.seconds,
                seconds_max=arguments.seconds_max,
            )
        else:
            names = list(arguments.only or ATTACKS)
            for make, some in (
                (alone, [name for name in names if arguments.pool or name not in _OF_POOL]),
                (_pool, [name for name in names if not arguments.pool and name in _OF_POOL]),
            ):
                if some:
                    with make(arguments, scratch) as target:
                        found += [(name, _attack(name, target)) for name in some]
    rows = tuple(_row(name, verdict) for name, verdict in found)
    title = "attacks from other addresses on a node, beside an ordinary client"
    failed = any(verdict is not None and not verdict.held for _, verdict in found)
    return AttackReport("attack", title, rows, exit_code=int(failed))


def _row(name: str, verdict: Verdict | None) -> Row:
    if verdict is None:
        return Row({"attack": name.replace("_", " "), "verdict": "skipped", "promise": "", "measured": ""})
    measured = ", ".join(f"{figure} {value:g}" for figure, value in verdict.figures.items())
    return Row(
        {
            "attack": name.replace("_", " "),
            "verdict": verdict.word,
            "promise": verdict.promise,
            "measured": measured,
        }
    )


def _attack(name: str, target: Target) -> Verdict | None:
    """Return the verdict of one attack; None if the target has not what it needs."""
    if not can_attack(name, target):
        return None
    verdict: Verdict = asyncio.run(importlib.import_module(f"bench.attacks.{name}").run(target))
    return verdict


@contextlib.contextmanager
def _node(arguments: argparse.Namespace, scratch: Path) -> Iterator[Target]:
    """Give the node that the arguments name, or a `fanout primary` with users, TLS and an agent check."""
    files = scratch / "files"
    files.mkdir(parents=True)
    if arguments.port is not None:
        users = {} if arguments.password is None else dict.fromkeys(_USERS, arguments.password)
        token = None if arguments.token_file is None else arguments.token_file.read_text().strip()
        yield Target(
            port=arguments.port,
            http_port=arguments.http_port,
            ca_file=arguments.ca_file,
            tls_port=arguments.tls_port,
            agent_port=arguments.agent_port,
            pool_port=arguments.pool_port,
            pool_token=token,
            pid=arguments.pid,
            users=users,
            scratch=files,
            scale=arguments.scale,
            patience=arguments.patience,
        )
        return
    with _started(scratch, arguments) as target:
        yield replace(target, scratch=files)


@contextlib.contextmanager
def _started(scratch: Path, arguments: argparse.Namespace, *, has_users: bool = True) -> Iterator[Target]:
    scratch.mkdir(parents=True, exist_ok=True)
    users_file = scratch / "users"
    users_file.write_text("".join(f"{user}:{hash_password(_PASSWORD.encode())}\n" for user in _USERS))
    users_file.chmod(0o600)
    certificate = scratch / "node"
    make_certificate(certificate)
    tls_port, agent_port = free_port(), free_port()
    settings = (
        f'[[server.listener]]\naddress = "mqtts://127.0.0.1:{tls_port}"\n'
        f'certificate_file = "{certificate}.crt"\nkey_file = "{certificate}.key"\n'
    ) + (f'[access]\npassword_file = "{users_file}"\n' if has_users else "")
    http = f'agent_listen = "127.0.0.1:{agent_port}"\n'
    with Node(scratch, role="primary", name="target", settings=settings, http=http) as node:
        assert node.process is not None
        node.wait_ready()  # its first answer over HTTP costs more than all others
        yield Target(
            port=node.port,
            http_port=node.http_port,
            tls_port=tls_port,
            agent_port=agent_port,
            pid=node.process.pid,
            users=dict.fromkeys(_USERS, _PASSWORD) if has_users else {},
            scale=arguments.scale,
            patience=arguments.patience,
        )


@contextlib.contextmanager
def _pool(arguments: argparse.Namespace, scratch: Path) -> Iterator[Target]:
    """Give the member that the arguments name, or the first one of a pool; one by one at a small scale it is alone."""
    if arguments.port is not None:
        with _node(arguments, scratch / "pool") as target:
            yield target
        return
    token_file = scratch / "token"
    token_file.write_text("a-token-of-the-benchmark\n")
    token_file.chmod(0o600)
    members = _MEMBERS if arguments.scale >= 1 or arguments.all_at_once else 1
    ports = [free_port() for _ in range(members)]
    with contextlib.ExitStack() as ends:
        primary = ends.enter_context(Node(scratch, role="primary", name="primary", log=False))
        nodes = []
        for number, port in enumerate(ports):
            section = pool_section(port, ports, settings=f'token_file = "{token_file}"\n')
            links = section + link(primary.port, selector("plant/#"))
            name = f"edge-{number}"
            nodes.append(ends.enter_context(Node(scratch, role="secondary", name=name, links=links, log=False)))
        for node in nodes:
            node.wait_ready()
        assert nodes[0].process is not None
        yield Target(
            port=nodes[0].port,
            http_port=nodes[0].http_port,
            pool_port=ports[0],
            pool_token="a-token-of-the-benchmark",
            peer_ports=tuple(node.port for node in nodes[1:]),
            peer_http_ports=tuple(node.http_port for node in nodes[1:]),
            pid=nodes[0].process.pid,
            scale=arguments.scale,
            patience=arguments.patience,
        )


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Let processes that are started meanwhile have the first processor alone, and everything later the others."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(processors) < 2:  # nothing to share out
        yield
        return
    os.sched_setaffinity(0, processors[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors[1:])
