"""`fanout reload`: make a node read its configuration again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, JsonOption, TokenOption, UrlArgument
from fanout.cli.output.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from fanout.api.models import ReloadResult

__all__ = ["register"]

_COSTS = {
    "nothing": "nothing",
    "selector": "its link connects anew, this selector is proved or removed alone",
    "link": "the link connects anew with its session",
    "session": "the link begins a new session, its values are removed and proved anew",
    "restart": "needs a restart",
}
"""What each cost is, in words."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 applied, or it could be; 1 of a dry run: needs a restart; 3 unreachable; 5 refused."
    )(reload)


def reload(
    url: UrlArgument = DEFAULT_URL,
    token_file: TokenOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change, and what each change costs.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Leave out changes that need a restart; else they refuse the whole reload."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a node take what has changed in its configuration.

    What did not change keeps running. A file with faults changes nothing.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url, token_file=token_file) as client:
        result = client.reload(dry_run=dry_run, partial=partial)
    print_json(result.model_dump(mode="json")) if as_json else show(*_lines(result))
    refused = any(change.cost == "restart" for change in result.changes) and not (result.applied or partial)
    raise typer.Exit(ExitCode.NO if refused else ExitCode.OK)


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
