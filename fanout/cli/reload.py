"""`fanout reload`: make a node read its configuration again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.arguments.node_options import JsonOption, TokenOption, UrlsArgument, UrlsOption
from fanout.cli.output.exit_codes import ExitCode
from fanout.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from fanout.api.models import ReloadResult
    from fanout.cli.asking.client import NodeClient

__all__ = ["register"]

_COSTS = {
    "nothing": "nothing",
    "selector": "this selector is proved or removed alone, its link goes on",
    "link": "the link connects anew with its session",
    "session": "the link begins a new session, its values are removed and proved anew",
    "restart": "needs a restart",
}
"""Words for each cost."""
_SHOWN_MAX = 5


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 applied, or it could be; 1 --dry-run: needs a restart, or one of several is not ready; "
        "3 unreachable; 5 refused."
    )(reload)


def reload(
    context: typer.Context,
    urls: UrlsArgument,
    *,
    named: UrlsOption = None,
    token_file: TokenOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change, and what each change costs.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Leave out changes that need a restart; else they refuse the whole reload."),
    ] = False,
    whole_pool: Annotated[
        bool, typer.Option("--pool", help="The nodes are the members of a pool; refuse if one is not named.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Of several nodes: time for each to be ready again.")
    ] = 60,
    as_json: JsonOption = False,
) -> None:
    """Make a node take what has changed in its configuration.

    All that did not change keeps running. A file with faults changes nothing. Several nodes are asked first whether
    they can, and then reloaded one after another; the first that is not ready again in time is the last.
    """
    from fanout.cli.asking.client import NodeClient, ask_until
    from fanout.cli.output.terminal import print_json, show

    source = context.get_parameter_source("urls")
    if named and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("give addresses as arguments or with it, not both", param_hint="--url")
    results: list[ReloadResult] = []
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(NodeClient(url, token_file=token_file)) for url in named or urls]
        if whole_pool:
            _check_named(clients)
        for client in clients if len(clients) > 1 and not (dry_run or partial) else ():
            _check_possible(client.reload(dry_run=True, partial=False))
        for number, client in enumerate(clients, 1):
            results.append(client.reload(dry_run=dry_run, partial=partial))
            if not as_json:
                show(*_lines(results[-1]))
            if len(clients) == 1 or dry_run:
                continue
            readiness = ask_until(client.readiness, lambda document: document.ready, timeout_s=wait)
            if not readiness.ready:
                left = f"; {len(clients) - number} more not reloaded" if number < len(clients) else ""
                show(f"{readiness.node} is not ready after {wait:g} s{left}: {'; '.join(readiness.reasons)}")
                raise typer.Exit(ExitCode.NO)
    if as_json:
        documents = [result.model_dump(mode="json") for result in results]
        print_json(documents[0] if len(documents) == 1 else documents)
    needed = any(change.cost == "restart" for result in results for change in result.changes)
    raise typer.Exit(ExitCode.NO if needed and dry_run and not partial else ExitCode.OK)


def _check_named(clients: Sequence[NodeClient]) -> None:
    """Check that the nodes are all members of one pool.

    Raises:
        RequestRefused: A member is not among them, or is not known.
    """
    named = {client.readiness().node for client in clients}
    members = {member.node or f"the one at {member.address}" for member in clients[0].pool().members}
    if named != members:
        raise RequestRefused(
            f"the pool has the members {', '.join(sorted(members))}, and {', '.join(sorted(named))} are named",
            hint="Give the HTTP address of each member, and wait until all are known: fanout pool",
        )


def _check_possible(result: ReloadResult) -> None:
    """Check that no change needs a restart.

    Raises:
        RequestRefused: One does.
    """
    keys = [change.key for change in result.changes if change.cost == "restart"]
    if keys:
        raise RequestRefused(
            f"{result.node} needs a restart for {', '.join(keys[:_SHOWN_MAX])}: nothing has changed, at any node",
            hint="Start it again, or take the other changes: --partial",
        )


def _lines(result: ReloadResult) -> Iterator[RenderableType]:
    from fanout.cli.output.quantities import counted
    from fanout.cli.output.terminal import columns

    if not result.changes:
        yield f"{result.node}: the configuration is as it was"
        return
    table = columns("change", "key", "cost")
    for one in result.changes:
        cost = _COSTS.get(one.cost, one.cost)
        table.add_row(one.change, one.key, f"{cost}: {one.reason}" if one.reason else cost)
    yield table
    yield ""
    left = sum(one.cost == "restart" for one in result.changes)
    waiting = f", {left} of them with the next start" if left else ""
    done = "applied" if result.applied else "found, nothing is applied (--dry-run)"
    yield f"{result.node}: {counted(len(result.changes), 'change')} {done}{waiting}"
