"""`fanout drain` and `fanout undrain`: make a node leave its pool and end, or leave it for a while and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption
from fanout.cli.output.exit_codes import ExitCode
from fanout.errors import NodeSilent, NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.api.models import Held
    from fanout.cli.asking.client import NodeClient

__all__ = ["register", "wait_ended"]

_POLL_S: Final = 0.25


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        cls=AskingCommand,
        epilog="Exit codes: 0 draining, with --wait ended, with --hold held; 1 not ended in time; 2 options that do not"
        " go together; 3 unreachable; 5 it drains or stops, and cannot be held.",
    )(drain)
    app.command(
        cls=AskingCommand, epilog="Exit codes: 0 not held; 3 unreachable; 5 it drains or stops, and cannot come back."
    )(undrain)


def drain(
    url: UrlOption = DEFAULT_URL,
    *,
    token_file: TokenOption = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Seconds to wait until the node has ended.")
    ] = 0,
    hold: Annotated[
        bool, typer.Option("--hold", help="Leave the pool only, until `fanout undrain` or a restart; nothing ends.")
    ] = False,
    disconnect: Annotated[
        bool, typer.Option("--disconnect", help="With --hold: send the clients away too, 500 in a second.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a node leave its pool and end; with --hold for a while.

    From now on the node is not ready. It serves its clients for node.drain_s more, then tells them to leave, and its
    process ends. A node that is held stays as it is, but not ready: a load balancer sends it no new clients, and those
    that it has stay.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    if hold and wait:
        raise typer.BadParameter("a node that is held does not end", param_hint="--wait")
    if disconnect and not hold:
        raise typer.BadParameter("goes with --hold; without it the clients leave anyway", param_hint="--disconnect")
    if hold:
        with NodeClient(url, token_file=token_file) as client:
            held = client.hold(disconnect=disconnect)
        print_json(held.model_dump(mode="json")) if as_json else show(*_held_lines(held, disconnect=disconnect))
        return
    with NodeClient(url, token_file=token_file) as client:
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


def undrain(url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Take a node that is held back into its pool.

    It is ready as soon as its links are.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url, token_file=token_file) as client:
        held = client.undrain()
    if as_json:
        print_json(held.model_dump(mode="json"))
        return
    now = "ready" if not held.reasons else f"not ready: {'; '.join(held.reasons)}"
    show(f"{held.node} is {'held no more' if held.changed else 'not held'}, and {now}")


def _held_lines(held: Held, *, disconnect: bool) -> Iterator[str]:
    from fanout.cli.output.quantities import counted

    since = "" if held.held_since is None else f" since {held.held_since:%Y-%m-%d %H:%M:%S} UTC"
    yield f"{held.node} is {'held' if held.changed else 'held already,'}{since}: not ready, until fanout undrain"
    clients = counted(held.connections, "client")
    yield f"{clients} {'are being sent away' if disconnect else 'may stay'}; clients that connect directly are served"


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
