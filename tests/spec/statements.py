"""Which normative statements the spec tests cover, noted where each test stands.

`docs/reference/mqtt-support.md` is made from `STATEMENTS` by `scripts/mqtt_support`. A statement is named as the
specifications name it: MQTT 5 and MQTT 3.1.1 number theirs independently.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["STATEMENTS", "Statement", "document", "load_all", "statement"]

F = TypeVar("F", bound=Callable[..., Any])

_TITLE = """# Which statements of MQTT are supported

Made by `scripts/mqtt_support` from the tests in `tests/spec`; a test sees to it that it is up to date. Every row is a
normative statement that binds a Server, and the test over a real socket that shows it. "Refused" says what a client is
told that breaks the statement: the Reason Code of MQTT 5; over MQTT 3.1.1, which has no DISCONNECT from a Server, its
Network Connection is closed. [conformance.md](conformance.md) has what other people's suites find.

Choices that the specification leaves to a Server:

- Overlapping subscriptions of one client bring one copy, at the highest QoS, with all Subscription Identifiers.
- A message at QoS 0 is not kept for a client that is away.
- A QoS 2 message is delivered when its PUBLISH comes, not when it is released.
- A PUBLISH that nobody has subscribed to is acknowledged with 0x10 over MQTT 5.
- A payload that is said to be UTF-8 and is not is refused with 0x99; at QoS 0 it is dropped and counted.
- A client that tells a Topic Alias Maximum gets Topic Aliases for the first topics that it is sent, at most
  `topic_alias_max`.
- A refused PUBLISH over MQTT 3.1.1 is acknowledged, dropped, counted and named in the log; if it may be accepted
  later, or with `refused_publish = "close"`, it closes the Network Connection at QoS 1 and 2.
- A message of a Shared Subscription that was not sent, or not acknowledged at QoS 1, goes to another member when the
  session of its receiver ends.
- A Topic Filter of more than `filter_levels_max` levels (128) is refused in SUBACK: 0x97, over MQTT 3.1.1 0x80.
- Enhanced authentication is not supported: a CONNECT with an Authentication Method gets CONNACK 0x8C, and AUTH after a
  CONNECT without one is a Protocol Error (0x82).
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One normative statement, and its test."""

    version: int
    """4 for MQTT 3.1.1, 5 for MQTT 5."""
    identifier: str
    """Such as `MQTT-3.1.0-1`."""
    refused: ReasonCode | None
    """What a client is told that breaks it; None when the statement is about what the server does."""
    module: str
    """The module of the test."""
    test: str
    """The name of the test."""
    text: str
    """What the test shows."""


STATEMENTS: list[Statement] = []
"""Every statement of the spec tests that were imported."""


def statement(*, v5: str = "", v4: str = "", refused: ReasonCode | None = None) -> Callable[[F], F]:
    """Note which statements a test shows, and run it for their versions.

    Args:
        v5: Statements of MQTT 5, without `MQTT-`, divided by spaces.
        v4: Statements of MQTT 3.1.1, likewise.
        refused: What a client is told that breaks them.
    """

    def note(test: F) -> F:
        text = (test.__doc__ or "").strip().splitlines()[0]
        STATEMENTS.extend(
            Statement(version, f"MQTT-{identifier}", refused, test.__module__, test.__name__, text)
            for version, identifiers in ((5, v5), (4, v4))
            for identifier in identifiers.split()
        )
        versions = [version for version, identifiers in ((5, v5), (4, v4)) if identifiers]
        if "version" not in test.__code__.co_varnames[: test.__code__.co_argcount]:
            return test
        marked: F = pytest.mark.parametrize("version", versions)(test)
        return marked

    return note


def load_all() -> None:
    """Import every module of spec tests, so that `STATEMENTS` has all."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"tests.spec.{path.stem}")


def document() -> str:
    """Return `docs/reference/mqtt-support.md`."""
    load_all()
    lines = [_TITLE]
    for version, name in ((5, "MQTT 5"), (4, "MQTT 3.1.1")):
        found = sorted({one for one in STATEMENTS if one.version == version}, key=_order)
        count = len({one.identifier for one in found})
        lines += [f"## {name}: {count} statements", "", "| statement | what | support | test |", "|---|---|---|---|"]
        for one in found:
            support = "supported"
            if one.refused is not None:
                support = f"refused, 0x{one.refused:02X}" if version == 5 else "refused, closed"
            file = one.module.rpartition(".")[2]
            lines.append(f"| {one.identifier} | {one.text} | {support} | `{file}`: `{one.test}` |")
        lines.append("")
    return "\n".join(lines)


def _order(one: Statement) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", one.identifier)], one.test
