"""`fanout topics`: show topics of a node and their values, now or as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from fanout.api.browse.models import TopicsDocument
    from fanout.cli.asking.client import NodeClient

__all__ = ["register"]

_TOPIC_CHARACTERS_MAX: Final = 120
_VALUE_CHARACTERS_MAX: Final = 160
_PAGE: Final = 1_000


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(cls=AskingCommand, epilog="Exit codes: 0 shown; 2 a wrong option; 3 unreachable; 5 refused.")(topics)


def topics(
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic Filter, such as plant/+/temp.")] = "#",
    url: UrlOption = DEFAULT_URL,
    *,
    search: Annotated[str, typer.Option(metavar="WORDS", help="Words that the topics contain.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="COUNT", help="How many to show.")] = 100,
    after: Annotated[str, typer.Option(metavar="TOPIC", help="Show those after this one.")] = "",
    value: Annotated[bool, typer.Option("--value", help="Print the values only, a line each.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Then print each message as it comes, until Ctrl-C.")] = False,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show topics of a node with their values, now or as they come.

    With --json and --watch each message is a line of JSON.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url, token_file=token_file) as node:
        if watch:
            _watch(node, topic_filter, search=search, value_only=value, as_json=as_json)
            return
        document = _pages(node, {"filter": topic_filter, "search": search}, after=after, limit=limit)
    if as_json:
        print_json(document.model_dump(mode="json"))
    elif value:
        show(*(_value(one.model_dump()) for one in document.topics))
    else:
        if document.topics:
            show(_table(document))
        show(*([""] if document.topics else []), *_notes(document))


def _pages(node: NodeClient, asked: dict[str, str], *, after: str, limit: int) -> TopicsDocument:
    """Return the first topics, from as many pages as needed."""
    document = node.topics(asked | {"after": after, "limit": str(min(limit, _PAGE))})
    while document.next is not None and len(document.topics) < limit:
        left = min(limit - len(document.topics), _PAGE)
        page = node.topics(asked | {"after": document.next, "limit": str(left)})
        document = page.model_copy(update={"topics": document.topics + page.topics})
    return document


def _watch(node: NodeClient, topic_filter: str, *, search: str, value_only: bool, as_json: bool) -> None:
    """Print retained values and messages until the node ends the stream."""
    from fanout.cli.output.terminal import json_line, show
    from fanout.escaping import printable

    words = search.lower().split()
    for name, _, data in node.stream("/v1/stream", {"filter": topic_filter}):
        if name in ("retained", "value"):
            if any(word not in data["topic"].lower() for word in words):
                continue
            topic = printable(data["topic"], length_max=_TOPIC_CHARACTERS_MAX)
            if as_json:
                show(json_line(data))
            else:
                show(_value(data) if value_only else f"{data['received'][11:23]}  {topic}  {_value(data)}")
        elif not (as_json or value_only):
            note = _told(name, data)
            if note:
                show(note)


def _told(name: str, data: dict[str, Any]) -> str:
    """Return a line about an event of a stream that is no value; empty for none."""
    from fanout.escaping import printable

    match name:
        case "conflated":
            return f"-- {data['messages']:,} older messages left out: more came than a stream carries"
        case "state":
            return f"-- link {printable(data['link'])} is {printable(data['state'])}"
        case "tear_down":
            return f"-- link {printable(data['link'])} removed its values"
        case "overflow" | "end":
            return f"-- the node ended the stream: {printable(data['reason'])}"
        case _:
            return ""


def _value(one: dict[str, Any]) -> str:
    """Return a value in one line."""
    from fanout.escaping import printable

    text = printable(one["value"], length_max=_VALUE_CHARACTERS_MAX)
    if one["format"] == "base64":
        text = f"base64:{text}"
    return f"{text}..." if one["cut"] and not text.endswith("...") else text


def _table(document: TopicsDocument) -> Table:
    from fanout.cli.output.quantities import UNKNOWN, as_bytes
    from fanout.cli.output.terminal import columns
    from fanout.escaping import printable

    table = columns("topic", "value", "bytes", "received", "link", right=("bytes",))
    for one in document.topics:
        table.add_row(
            printable(one.topic, length_max=_TOPIC_CHARACTERS_MAX),
            _value(one.model_dump()),
            as_bytes(one.payload_bytes),
            f"{one.received:%Y-%m-%d %H:%M:%S}",
            UNKNOWN if one.link is None else printable(one.link),
        )
    return table


def _notes(document: TopicsDocument) -> Iterator[str]:
    from fanout.cli.output.quantities import counted
    from fanout.escaping import printable

    yield (
        counted(len(document.topics), "topic")
        if document.held is None
        else (f"{len(document.topics):,} of {counted(document.held, 'topic')}")
    )
    if document.next is not None:
        yield f"more: --after {printable(document.next)}"
