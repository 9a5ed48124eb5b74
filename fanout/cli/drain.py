"""`fanout drain`: make a node leave its pool and end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fanout.cli.exit_codes import ExitCode
from fanout.cli.options import DEFAULT_URL, JsonOption, UrlArgument
from fanout.errors import NodeSilent, NodeUnreachable

if TYPE_CHECKING:
    from fanout.cli.client import NodeClient

__all__ = ["register", "wait_ended"]

_POLL_S: Final = 0.25


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog="Exit codes: 0 draining, with --wait ended; 1 not ended in time; 3 unreachable.")(drain)


def drain(
    url: UrlArgument = DEFAULT_URL,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for the node to end.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a node leave its pool and end, as SIGTERM does.

    From now on the node is not ready. It serves its clients for node.drain_s more, then tells them to leave, and its
    process ends.
    """
    from fanout.cli.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url) as client:
        draining = client.drain()
        if as_json:
            print_json(draining.model_dump(mode="json"))
        else:
            show(f"{draining.node} is {draining.state}, {draining.left_seconds:.1f} s are left")
        if wait and not wait_ended(client, timeout_s=wait):
            if not as_json:
                show(f"{draining.node} has not ended within {wait:g} s")
            raise typer.Exit(ExitCode.NO)
    if wait and not as_json:
        show(f"{draining.node} has ended")


def wait_ended(
    client: NodeClient,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask until nothing listens at the address; return whether that happened in time.

    A slow answer, as while a node disconnects its clients, does not count as the end.

    Args:
        client: The node.
        timeout_s: Time limit.
        clock: Tells seconds.
        sleep: Pauses.
    """
    deadline = clock() + timeout_s
    while True:
        try:
            client.readiness()
        except NodeSilent:
            pass
        except NodeUnreachable:
            return True
        left_s = deadline - clock()
        if left_s <= 0:
            return False
        sleep(min(_POLL_S, left_s))
