"""`fanout events`: show the newest events of a node, or follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption

if TYPE_CHECKING:
    from fanout.api.browse.models import EventView

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(cls=AskingCommand, epilog="Exit codes: 0 shown; 2 a wrong option; 3 unreachable; 5 refused.")(events)


def events(
    url: UrlOption = DEFAULT_URL,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Then print each new one, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="COUNT", help="How many to show.")] = 50,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened at a node, a sentence each, the newest last.

    Changes of state, alarms, comparisons and skipped messages since its start, 2,000 at most. `fanout log show` has
    older ones. With --json and --follow each event is a line of JSON.
    """
    from fanout.api.browse.models import EventView
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import json_line, print_json, show

    with NodeClient(url, token_file=token_file) as node:
        document = node.events(limit=limit)
        if as_json and not follow:
            print_json(document.model_dump(mode="json"))
            return
        oldest_first = document.events[::-1]
        for event in oldest_first:
            show(json_line(event.model_dump(mode="json")) if as_json else _line(event))
        if follow:
            last_id = f"{document.process}-{oldest_first[-1].id if oldest_first else 0}"
            for _, _, data in node.stream("/v1/events", {}, last_id=last_id):
                show(json_line(data) if as_json else _line(EventView.model_validate(data)))


def _line(event: EventView) -> str:
    from fanout.escaping import printable

    return f"{event.at:%Y-%m-%d %H:%M:%S}  {printable(event.text)}"
