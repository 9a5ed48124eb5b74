"""`fanout clients`: show the clients of a node, and send one away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from fanout.cli.arguments.node_options import (
    DEFAULT_URL,
    AskingCommand,
    JsonOption,
    ShowByDefault,
    TokenOption,
    UrlOption,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from rich.table import Table

    from fanout.api.models import ClientDetail, ClientsDocument

__all__ = ["app"]

app = typer.Typer(cls=ShowByDefault, help="Show the clients of a node, and send one away.")

_SHOWN: Final = 100
_NAME_CHARACTERS_MAX: Final = 60
_FILTER_CHARACTERS_MAX: Final = 400


@app.command(
    "show",
    cls=AskingCommand,
    epilog="Exit codes: 0 shown; 2 a wrong option; 3 unreachable; 5 refused, or there is no such client.",
)
def clients(
    url: UrlOption = DEFAULT_URL,
    *,
    slowest: Annotated[
        bool, typer.Option("--slowest", help="Show the slowest first, not in the order of IDs.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="COUNT", help="How many to show.")] = _SHOWN,
    after: Annotated[str, typer.Option(metavar="ID", help="Show those after this Client Identifier.")] = "",
    client: Annotated[str | None, typer.Option(metavar="ID", help="Show this one in full.")] = None,
    topic_filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Show those that may read a topic of it.")
    ] = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show connected clients, their waiting messages, and slow readers.

    Bytes a second are measured for half a second, by what the client's system acknowledges.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import facts, print_json, show

    if slowest and after:
        raise typer.BadParameter("pages exist only in the order of IDs", param_hint="--after")
    with NodeClient(url, token_file=token_file) as node:
        order = "slowest" if slowest else "id"
        document = node.clients(order=order, limit=limit, after=after, client_id=client, filter=topic_filter)
    if as_json:
        print_json(document.model_dump(mode="json"))
        return
    if client is not None and document.clients:
        show(facts(*_client_facts(document.clients[0], document.at)))
        return
    if document.clients:
        show(_table(document, topic_filter))
    show(*([""] if document.clients else []), *_notes(document, topic_filter))


@app.command(
    cls=AskingCommand,
    epilog="Exit codes: 0 sent away; 2 a wrong option; 3 unreachable; 5 refused, or there is no such client.",
)
def kick(
    client_id: Annotated[str, typer.Argument(metavar="ID", help="Client Identifier.")],
    url: UrlOption = DEFAULT_URL,
    *,
    clean: Annotated[bool, typer.Option("--clean", help="End the session too, with its waiting messages.")] = False,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a client away: DISCONNECT 0x98, Administrative action.

    Its session stays, as after a lost connection, and it may come back at once. Access rules keep it out.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url, token_file=token_file) as node:
        result = node.kick(client_id, clean=clean)
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    went = "was sent away" if result.was_connected else "was not connected"
    show(f"{client_id} {went}; its session {'has ended' if result.session == 'ended' else 'stays'}")


def _table(document: ClientsDocument, topic_filter: str | None) -> Table:
    from fanout.cli.output.quantities import UNKNOWN, as_bytes, as_count
    from fanout.cli.output.terminal import columns
    from fanout.escaping import printable

    numbers = ("queued", "bytes", "conflated", "bytes/s")
    last = "filters" if topic_filter is None else "reads it by"
    table = columns("client", "user", "address", "slow for", *numbers, last, right=(*numbers, "filters"))
    for one in document.clients:
        table.add_row(
            printable(one.client_id, length_max=_NAME_CHARACTERS_MAX),
            printable(one.user or UNKNOWN, length_max=_NAME_CHARACTERS_MAX),
            one.address or "not connected",
            _ago(one.slow_since, document.at),
            as_count(one.queued_messages),
            as_bytes(one.queued_bytes + one.unsent_bytes),
            as_count(one.conflated_topics),
            UNKNOWN if one.bytes_per_second is None else as_bytes(round(one.bytes_per_second)),
            as_count(one.subscriptions)
            if topic_filter is None
            else printable(", ".join(one.matching), length_max=_NAME_CHARACTERS_MAX),
        )
    return table


def _client_facts(one: ClientDetail, now: datetime) -> Iterator[tuple[str, str]]:
    from fanout.cli.output.quantities import UNKNOWN, as_bytes, as_count, counted
    from fanout.escaping import printable

    yield "client", one.client_id
    yield "user", one.user or "none"
    since = "" if one.connected_since is None else f", for {_ago(one.connected_since, now)}"
    yield "address", f"{one.address or 'not connected'}{since}"
    yield "protocol", f"MQTT {one.version}"
    yield "slow", "no" if one.slow_since is None else f"for {_ago(one.slow_since, now)}"
    yield "queued", f"{counted(one.queued_messages, 'message')}, {as_bytes(one.queued_bytes)}"
    yield "unsent", as_bytes(one.unsent_bytes)
    yield "conflated", counted(one.conflated_topics, "topic")
    yield "in flight", counted(one.in_flight_messages, "message")
    yield "reads", UNKNOWN if one.bytes_per_second is None else f"{as_bytes(round(one.bytes_per_second))}/s"
    yield "filters", as_count(one.subscriptions)
    for topic_filter in one.filters:
        yield "", printable(topic_filter, length_max=_FILTER_CHARACTERS_MAX)


def _notes(document: ClientsDocument, topic_filter: str | None) -> Iterator[str]:
    from fanout.cli.output.quantities import counted
    from fanout.escaping import printable

    what = "" if topic_filter is None else f" that may read {printable(topic_filter, length_max=_NAME_CHARACTERS_MAX)}"
    yield f"{len(document.clients):,} of {counted(document.sessions, 'session')}{what} at {document.node}"
    if document.next is not None:
        yield f"more: --after {document.next}"


def _ago(since: datetime | None, now: datetime) -> str:
    from fanout.cli.output.quantities import UNKNOWN, as_duration

    return UNKNOWN if since is None else as_duration(max(0.0, (now - since).total_seconds()))
