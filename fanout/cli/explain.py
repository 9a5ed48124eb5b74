"""`fanout explain`: say what is wrong with one topic, and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fanout.cli.arguments.node_options import (
    DEFAULT_URL,
    AskingCommand,
    JsonOption,
    TokenOption,
    UrlOption,
    checked_url,
)
from fanout.cli.output.exit_codes import ExitCode, exit_code_of
from fanout.errors import FanoutError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fanout.api.topic_facts import (
        Finding,
        LoggedEvent,
        LoggedUpdate,
        PrimaryAnswer,
        TapFacts,
        TopicClient,
        TopicExplanation,
        TopicFacts,
        TopicLink,
        TopicValue,
    )

__all__ = ["register"]

_TEXT_MAX = 400
"""Characters of a text of the log that are shown; the JSON has all."""
_LOGGED_MAX = 5
"""Rows and events of the log that are shown; the JSON has all."""
_NO_VALUE = "no value"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        cls=AskingCommand,
        epilog="Exit codes: 0 equal at the primary; 1 not equal, or another finding; 3 the node, a member or the"
        " primary does not answer; 5 the node does not explain it now.",
    )(explain)


def _checked_topic(text: str) -> str:
    from fanout.errors import ProtocolError
    from fanout.mqtt.topics import check_topic_name

    try:
        check_topic_name(text.encode(errors="surrogateescape"))
    except ProtocolError as error:
        raise typer.BadParameter(f"{error.detail}; give one topic as it is published") from error
    return text


def _checked_tap(text: str | None) -> str | None:
    return None if text is None else checked_url(text)


def explain(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", callback=_checked_topic, help="Topic Name at the node, with the selector's prefix."
        ),
    ],
    *,
    url: UrlOption = DEFAULT_URL,
    tap: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=_checked_tap, help="HTTP address of a tap to compare with."),
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="ID", help="Client Identifier of a client that does not get the topic.")
    ] = None,
    in_pool: Annotated[bool, typer.Option("--pool", help="Ask all members of the node's pool.")] = False,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a topic is stale, since when, and why.

    The node asks the primary for the topic by name, as the user of the link and on a connection of its own. Payloads
    are compared by digest, and never shown.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_error, print_json

    if in_pool:
        if tap is not None:
            raise typer.BadParameter("a tap is compared with one node: leave out --pool", param_hint="--tap")
        _explain_in_pool(url, topic, client=client, token_file=token_file, as_json=as_json)
    with NodeClient(url, token_file=token_file) as node:
        found = node.explain(topic, client_id=client)
    fault: FanoutError | None = None
    if tap is not None and found.facts.link is not None:
        try:
            found = _with_tap(found, tap, token_file)
        except FanoutError as error:
            fault = error
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found)
    if fault is not None:
        print_error(fault)
        raise typer.Exit(exit_code_of(fault))
    codes = {"equal": ExitCode.OK, "unknown": ExitCode.UNREACHABLE}
    raise typer.Exit(codes.get(found.verdict.kind, ExitCode.NO))


def _explain_in_pool(url: str, topic: str, *, client: str | None, token_file: Path | None, as_json: bool) -> NoReturn:
    """Show what all members say, what they say together, and one of them in full."""
    from fanout.cli.asking.pool_topic import explain_in_pool
    from fanout.cli.output.terminal import columns, print_json, show, styled

    pool = explain_in_pool(url, topic, client_id=client, token_file=token_file)
    if as_json:
        found = {name: one.model_dump(mode="json") for name, one in pool.found.items()}
        print_json({"members": found, "left_out": dict(pool.left_out), "together": list(pool.together)})
    else:
        for text in pool.together:
            show(styled((f"{_shortened(text)}.", "bold")))
        table = columns("member", "finding")
        for name, one in pool.found.items():
            table.add_row(name, _sentence(one.verdict.text))
        for name, reason in pool.left_out.items():
            table.add_row(name, _sentence(f"not asked: {reason}"))
        show(*([""] if pool.together else []), table, "", f"{pool.worst}:")
        _show(pool.found[pool.worst])
    kinds = {one.verdict.kind for one in pool.found.values()}
    if kinds - {"equal", "unknown"} or pool.of_two_primaries:
        raise typer.Exit(ExitCode.NO)
    raise typer.Exit(ExitCode.UNREACHABLE if "unknown" in kinds or pool.left_out else ExitCode.OK)


def _with_tap(found: TopicExplanation, url: str, token_file: Path | None) -> TopicExplanation:
    """Return the explanation with the facts of another node, judged anew."""
    from fanout.api.topic_facts import TapFacts
    from fanout.api.topic_verdict import explain as judge
    from fanout.cli.asking.client import NodeClient

    assert found.facts.link is not None
    with NodeClient(url, token_file=token_file) as client:
        there = client.explain(found.facts.link.topic, at_primary=True).facts
    tap = TapFacts(
        node=there.node,
        value=there.value,
        username=None if there.link is None else there.link.username,
        primary=there.primary,
    )
    return judge(found.facts.model_copy(update={"tap": tap}))


def _show(found: TopicExplanation) -> None:
    from fanout.cli.output.terminal import facts, show, styled

    style = {"equal": "bold green", "unknown": "bold yellow"}.get(found.verdict.kind, "bold red")
    show(styled((_sentence(found.verdict.text), style)))
    if found.verdict.hint:
        show(styled(f"  {_sentence(found.verdict.hint)}"))
    show("", facts(*_facts(found.facts)))
    for one in found.also:
        show("", styled("Also: ", _sentence(_with_hint(one))))


def _facts(found: TopicFacts) -> Iterator[tuple[str, RenderableType]]:
    """Yield the facts, each with its name."""
    from fanout.cli.output.terminal import lines

    link, log = found.link, found.log
    name = "" if link is None or link.topic == found.topic else f", at the primary {_shortened(link.topic)}"
    yield "topic", lines(_shortened(found.topic) + name)
    yield "here", lines(f"{_value(found.value, found.at)}, node {found.node}")
    if link is not None:
        yield "link", lines(_link(link))
    if found.primary is not None:
        yield "primary", lines(_at_primary(found.primary, link))
    if found.tap is not None:
        yield "tap", lines(_tap(found.tap, found.at))
    if found.client is not None:
        yield "client", lines(_client(found.client))
    if log is not None and log.error is not None:
        yield "log", lines(log.error)
    elif log is not None:
        yield "log", lines(*map(_update, log.updates[-_LOGGED_MAX:])) if log.updates else "no row of it"
        if log.searched_since is not None:
            yield "", f"searched since {_time(log.searched_since)}"
        if log.events:
            name = "" if link is None else link.name
            yield "events", lines(*(_event(row, name) for row in log.events[-_LOGGED_MAX:]))


def _link(link: TopicLink) -> str:
    text = f"{link.name}, selector {_shortened(link.selector)}, {link.state} since {_time(link.since)}"
    return text if link.reason is None else f"{text}: {link.reason}"


def _value(value: TopicValue | None, now: datetime) -> str:
    from fanout.cli.output.quantities import as_duration, counted

    if value is None:
        return _NO_VALUE
    text = f"{counted(value.payload_bytes, 'byte')}, digest {value.digest}"
    if value.received is not None:
        age_s = max(0.0, (now - value.received).total_seconds())
        text += f", came {_time(value.received)} ({as_duration(age_s)} ago)"
    if value.expires is not None:
        text += f", expires {_time(value.expires)}"
    return text


def _answer(answer: PrimaryAnswer) -> str:
    from fanout.cli.output.quantities import counted

    text = {
        "value": ""
        if answer.value is None
        else f"{counted(answer.value.payload_bytes, 'byte')}, digest {answer.value.digest}",
        "absent": "sends no value",
    }.get(answer.outcome, f"{answer.outcome}: {answer.error}")
    if answer.beside_absent:
        text += f"; of {answer.beside_asked} topics beside it {answer.beside_absent} do not come"
    return text


def _at_primary(answer: PrimaryAnswer, link: TopicLink | None) -> str:
    return _answer(answer) if link is None else f"{link.primary}: {_answer(answer)}"


def _tap(tap: TapFacts, now: datetime) -> str:
    if tap.primary is None:
        return f"{tap.node}: outside its selectors"
    return f"{tap.node}: {_value(tap.value, now)}; its primary: {_answer(tap.primary)}"


def _client(client: TopicClient) -> str:
    from fanout.cli.output.quantities import counted

    if client.unknown is not None:
        return client.unknown
    if not client.session:
        return "no session"
    matching = " ".join(map(_shortened, client.filters)) or "none matches"
    return (
        f"{'connected' if client.connected else 'not connected'}, {counted(client.subscriptions, 'subscription')}"
        f" ({matching}), {counted(client.queued_messages, 'message')} waiting"
    )


def _update(row: LoggedUpdate) -> str:
    from fanout.cli.output.quantities import counted

    return f"{_time(row.at)}  {row.change} ({row.phase}), {counted(row.payload_bytes, 'byte')}, digest {row.digest}"


def _event(row: LoggedEvent, link: str) -> str:
    from fanout.node.browse.events import sentence

    text = sentence(row.event, link=link, state=row.state, selector=row.selector, detail=row.detail)
    return f"{_time(row.at)}  {_shortened(text)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


def _with_hint(finding: Finding) -> str:
    return f"{finding.text}. {finding.hint}" if finding.hint else finding.text


def _shortened(text: str) -> str:
    from fanout.escaping import printable

    return printable(text, length_max=_TEXT_MAX)


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
