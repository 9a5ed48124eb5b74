"""`fanout pool`: show the members of a pool, and say whether one of them may be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.arguments.node_options import (
    DEFAULT_URL,
    AskingCommand,
    JsonOption,
    ShowByDefault,
    TokenOption,
    UrlOption,
)
from fanout.cli.output.exit_codes import ExitCode
from fanout.errors import RequestRefused

if TYPE_CHECKING:
    from fanout.api.models import PoolDocument

__all__ = ["app"]

_COMPARED = {"digest", "payload_bytes", "qos", "received"}
"""Figures of a value that `compare --json` prints."""

app = typer.Typer(cls=ShowByDefault, help="Show and compare the members of a pool, or ask if one may stop.")


@app.command(cls=AskingCommand, epilog="Exit codes: 0 shown, ready or not; 3 unreachable; 5 the node is in no pool.")
def show(url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Show the members of a pool, as one of them sees them.

    An unknown value is shown as a dash, never as zero. `fanout ready --pool` says if the pool may take clients.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.pool_table import pool_lines
    from fanout.cli.output.terminal import print_json
    from fanout.cli.output.terminal import show as show_lines

    with NodeClient(url, token_file=token_file) as client:
        document = client.pool()
    if as_json:
        print_json(document.model_dump(mode="json"))
        return
    show_lines(*pool_lines(document))


@app.command(
    cls=AskingCommand,
    epilog="Exit codes: 0 the same at all; 1 some differ, or change too quickly; 3 unreachable; 5 in no pool.",
)
def compare(
    url: UrlOption = DEFAULT_URL,
    *,
    limit: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Topics to show.")] = 20,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the topics that members of a pool hold differently.

    Reads the topics of all members, side by side, and looks three times at those that seem to differ. Every member is
    asked at its HTTP address, with the same token.
    """
    from fanout.api.browse.pool_values import compare_members
    from fanout.cli.asking.client import pool_clients
    from fanout.cli.output.pool_table import comparison_lines
    from fanout.cli.output.terminal import print_json
    from fanout.cli.output.terminal import show as show_lines

    with pool_clients(url, token_file=token_file) as (_, members, left_out):
        if left_out:
            raise RequestRefused(
                "; ".join(f"{name} cannot be asked: {reason}" for name, reason in left_out.items()),
                hint="Wait until it answers, and add [http] to its configuration, with TLS as here",
            )
        found = compare_members(members)
    if as_json:
        differing = [
            {
                "topic": one.topic,
                "values": {
                    name: None if held is None else held.model_dump(mode="json", include=_COMPARED)
                    for name, held in one.values.items()
                },
            }
            for one in found.differing
        ]
        counts = {"topics": found.topics, "changing": found.changing, "whole": found.whole}
        print_json({"members": list(members), **counts, "differing": differing})
    else:
        show_lines(*comparison_lines(found, {name: client.url for name, client in members.items()}, limit=limit))
    raise typer.Exit(ExitCode.NO if found.differing or found.changing else ExitCode.OK)


@app.command(
    "upgrade-check",
    cls=AskingCommand,
    epilog="Exit codes: 0 it may be stopped; 1 it should stay; 3 unreachable; 5 in no pool, or too old to say.",
)
def upgrade_check(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Seconds to wait until the others are ready for it.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Ask whether a member may be stopped now, to be upgraded.

    The others must be ready for its clients and sessions: every one reachable, not on its way out, and with the
    same links and values. The member itself need not be ready. Follow with fanout drain.
    """
    from fanout.cli.asking.client import NodeClient, ask_until
    from fanout.cli.output.pool_table import leaving_lines
    from fanout.cli.output.terminal import print_json
    from fanout.cli.output.terminal import show as show_lines

    with NodeClient(url, token_file=token_file) as client:
        document = ask_until(client.pool, _may_stop, timeout_s=wait)
    if as_json:
        reasons = document.stay_reasons
        print_json({"node": document.node, "may_stop": not reasons, "reasons": reasons})
    else:
        show_lines(*leaving_lines(document))
    raise typer.Exit(ExitCode.OK if _may_stop(document) else ExitCode.NO)


def _may_stop(document: PoolDocument) -> bool:
    if document.stay_reasons is None:
        raise RequestRefused(
            f"{document.node} does not say whether it may be stopped: its version of fanout is too old",
            hint="Ask for the whole pool instead: fanout ready --pool",
        )
    return not document.stay_reasons
