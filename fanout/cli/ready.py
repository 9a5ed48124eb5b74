"""`fanout ready`: ask whether a node, or its whole pool, may take clients, and wait until it may."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption
from fanout.cli.output.exit_codes import ExitCode
from fanout.errors import NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType
    from rich.table import Table

    from fanout.api.models import Readiness
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.progress import SyncProgress

__all__ = ["register", "wait_ready"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(cls=AskingCommand, epilog="Exit codes: 0 ready, 1 not ready, 3 unreachable, 5 in no pool (--pool).")(
        ready
    )


def ready(
    url: UrlOption = DEFAULT_URL,
    *,
    token_file: TokenOption = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Seconds to wait until the node is ready.")] = 0,
    whole_pool: Annotated[
        bool, typer.Option("--pool", help="Ask for the whole pool: every member is reachable and ready.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask whether a node, or its whole pool, holds all it replicates.

    A node that is not ready says why.

    With --wait the node is asked twice a second, also while it cannot be reached; on a terminal, standard
    error shows the topics of each link as they arrive.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.progress import SyncProgress
    from fanout.cli.output.terminal import error_console, print_json, show

    if whole_pool:
        _ready_pool(url, token_file, wait=wait, as_json=as_json)
    console = error_console()
    with NodeClient(url, token_file=token_file) as client, SyncProgress(console, url=url, enabled=wait > 0) as progress:
        readiness = wait_ready(client, timeout_s=wait, progress=progress)
    if as_json:
        print_json(readiness.model_dump(mode="json"))
    else:
        show(*_verdict(readiness))
        if readiness.links:
            show("", _links_table(readiness))
    raise typer.Exit(ExitCode.OK if readiness.ready else ExitCode.NO)


def _ready_pool(url: str, token_file: Path | None, *, wait: float, as_json: bool) -> NoReturn:
    from fanout.cli.asking.client import NodeClient, ask_until
    from fanout.cli.output.pool_table import pool_lines
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url, token_file=token_file) as client:
        document = ask_until(client.pool, lambda document: document.ready, timeout_s=wait)
    if as_json:
        print_json(document.model_dump(mode="json"))
    else:
        show(*pool_lines(document))
    raise typer.Exit(ExitCode.OK if document.ready else ExitCode.NO)


def wait_ready(
    client: NodeClient,
    *,
    timeout_s: float,
    progress: SyncProgress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Readiness:
    """Ask until the node is ready or the time is up, and return its last answer.

    Args:
        client: The node.
        timeout_s: Time limit; 0 asks once.
        progress: Shows each answer.
        clock: Tells seconds.
        sleep: Pauses.

    Raises:
        NodeUnreachable: It could not be reached at the last try.
    """
    from fanout.cli.asking.client import ask_until

    def shown() -> Readiness:
        try:
            readiness = client.readiness()
        except NodeUnreachable:
            progress.unreachable()
            raise
        progress.update(readiness)
        return readiness

    return ask_until(shown, lambda readiness: readiness.ready, timeout_s=timeout_s, clock=clock, sleep=sleep)


def _verdict(readiness: Readiness) -> list[RenderableType]:
    from rich.padding import Padding

    from fanout.cli.output.terminal import styled

    answer = ("ready", "green") if readiness.ready else ("not ready", "red")
    return [
        styled(f"{readiness.node} ({readiness.role}) is ", answer),
        *(Padding(reason, (0, 0, 0, 2)) for reason in readiness.reasons),
        *(
            Padding(f"link {link.name}: {link.not_held_reason}", (0, 0, 0, 2))
            for link in readiness.links
            if link.not_held_reason is not None
        ),
        *(Padding(line, (0, 0, 0, 2)) for line in _effect(readiness)),
    ]


def _effect(readiness: Readiness) -> Iterator[str]:
    """Yield what follows for clients, and what comes next, of a node that is not ready."""
    if readiness.ready:
        return
    if readiness.role != "tap":  # which has no clients
        if readiness.state != "not_ready":
            yield "now: clients are sent away"
        else:
            held = "old values" if readiness.stale_seconds is not None else "what it holds"
            served = "are served" if readiness.held_since is not None else f"get {held}"
            yield f"now: load balancers send no new clients (503); connected ones {served}"
    if readiness.state != "not_ready":
        yield "next: the process ends; nothing undoes that"
    elif readiness.held_since is not None:
        yield "next: nothing by itself; fanout undrain ends the hold"
    else:
        yield "next: ready by itself once that is over; remedies: fanout status"


def _links_table(readiness: Readiness) -> Table:
    from fanout.cli.output.quantities import UNKNOWN, as_topics
    from fanout.cli.output.terminal import columns, state_text

    table = columns("link", "state", "topics", "evidence", "selector", right=("topics",))
    for link in readiness.links:
        for one in link.selectors:
            topics = as_topics(one.topics, maybe_unreadable=one.maybe_unreadable)
            table.add_row(link.name, state_text(link.state), topics, one.evidence or UNKNOWN, one.filter)
    return table
