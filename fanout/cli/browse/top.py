"""`fanout top`: links, busiest branches and topics, and slowest clients of a node, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group, RenderableType

    from fanout.api.browse.models import TopTopics
    from fanout.api.models import ClientsDocument, NodeStatus
    from fanout.cli.asking.client import NodeClient

__all__ = ["register"]

_BRANCHES: Final = 5


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(cls=AskingCommand, epilog="Exit codes: 0 shown; 2 a wrong option; 3 unreachable; 5 refused.")(top)


def top(
    url: UrlOption = DEFAULT_URL,
    *,
    count: Annotated[int, typer.Option(min=1, max=100, metavar="COUNT", help="Topics and clients to show.")] = 10,
    interval: Annotated[float, typer.Option(min=0.5, max=60, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval of five seconds.")] = False,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show links, busy branches and topics, and slow clients, live.

    The node counts messages by topic only while somebody looks. --json implies --once.
    """
    from rich.live import Live

    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import output_console, print_json, show

    with NodeClient(url, token_file=token_file) as node:
        if once or as_json:
            while (topics := node.top(count)).interval_s is None:
                time.sleep(0.5)
            status, clients = node.status(), _clients(node, count)
            if as_json:
                print_json(
                    {
                        "links": [link.model_dump(mode="json") for link in status.links],
                        "top": topics.model_dump(mode="json"),
                        "clients": [] if clients is None else clients.model_dump(mode="json")["clients"],
                    }
                )
            else:
                show(_screen(status, topics, clients))
            return
        with Live(console=output_console(), auto_refresh=False, transient=False) as live:
            while True:
                live.update(_screen(node.status(), node.top(count), _clients(node, count)), refresh=True)
                time.sleep(interval)


def _clients(node: NodeClient, count: int) -> ClientsDocument | None:
    """Return the slowest clients; None from a node that serves none."""
    from fanout.errors import RequestRefused

    try:
        return node.clients(order="slowest", limit=count)
    except RequestRefused:
        return None


def _screen(status: NodeStatus, topics: TopTopics, clients: ClientsDocument | None) -> Group:
    from rich.console import Group

    return Group(*_parts(status, topics, clients))


def _parts(status: NodeStatus, topics: TopTopics, clients: ClientsDocument | None) -> Iterator[RenderableType]:
    from fanout.cli.output.quantities import UNKNOWN, as_bytes, as_count
    from fanout.cli.output.terminal import columns, state_text
    from fanout.escaping import printable

    ready = "ready" if status.ready else "not ready"
    yield f"{printable(status.node)} is {ready}, {topics.per_second:,.0f} messages/s"
    if status.links:
        yield ""
        table = columns("link", "state", "topics", "reason", right=("topics",))
        for link in status.links:
            name = printable(link.name)
            table.add_row(name, state_text(link.state), as_count(link.topics), printable(link.reason or UNKNOWN))
        yield table
    yield ""
    if topics.interval_s is None:
        yield "Messages by topic are counted from now on; the first figures come after five seconds."
    else:
        branches = [(one.filter, one.per_second) for one in topics.branches[:_BRANCHES]]
        for heading, busiest in (
            ("branch", branches),
            ("topic", [(one.topic, one.per_second) for one in topics.topics]),
        ):
            table = columns(heading, "messages/s", right=("messages/s",))
            for name, rate in busiest:
                table.add_row(printable(name, length_max=120), f"{rate:,.1f}")
            yield table
        if branches:
            yield "fanout clients show --filter BRANCH shows who reads it."
    if clients is not None and clients.clients:
        yield ""
        table = columns("client", "queued", "bytes", "conflated", right=("queued", "bytes", "conflated"))
        for one in clients.clients:
            waiting = as_bytes(one.queued_bytes + one.unsent_bytes)
            name = printable(one.client_id, length_max=60)
            table.add_row(name, as_count(one.queued_messages), waiting, as_count(one.conflated_topics))
        yield table
