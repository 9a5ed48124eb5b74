"""`fanout audit`: make a node compare its replicas with its primaries, and repair them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption
from fanout.cli.output.exit_codes import ExitCode, exit_code_of
from fanout.errors import AuditRefused, FanoutError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from fanout.api.models import AuditDetail, NodeStatus, UnconfirmedDocument
    from fanout.cli.asking.client import NodeClient

__all__ = ["register"]

_TOPICS_MAX = 2_000_000
"""Largest number of topics listed: more than a node remembers by name, unless it gives pages without end."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        cls=AskingCommand,
        epilog="Exit codes: 0 equal now; 1 unconfirmed topics, or an audit failed; 3 unreachable; 5 one cannot begin.",
    )(audit)


def audit(
    link: Annotated[str | None, typer.Argument(metavar="LINK", help="Name of a link; default: all links.")] = None,
    url: UrlOption = DEFAULT_URL,
    *,
    token_file: TokenOption = None,
    confirm: Annotated[
        int | None,
        typer.Option(
            "--confirm",
            metavar="NUMBER",
            min=0,
            help="Remove this number of unconfirmed topics, because they are deleted at the primary.",
        ),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the unconfirmed topics and make no audit; --json shows every topic.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare a node's replicas with their primaries and repair them.

    Every live link takes the retained sets again, inside its session. Local clients get what was missed, and
    nothing that is unchanged. Topics that do not come are removed only if something shows that they are deleted there;
    otherwise they stay, unconfirmed.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.quantities import counted
    from fanout.cli.output.terminal import print_error, print_json, show

    if listing and confirm is not None:
        raise typer.BadParameter("--list and --confirm exclude each other", param_hint="--list")
    with NodeClient(url, token_file=token_file) as client:
        names = _names(client.status(), link)
        if confirm is not None and len(names) > 1:
            raise typer.BadParameter(f"name one of the links: {', '.join(names)}", param_hint="--confirm")
        if listing:
            raise typer.Exit(_list_unconfirmed(client, names, as_json=as_json))
        details, faults = _audit_each(client, names, confirm=confirm)
    if as_json:
        documents = {name: detail.model_dump(mode="json") for name, detail in details.items()}
        print_json(documents | {name: {"error": fault.message, "hint": fault.hint} for name, fault in faults.items()})
    elif details:
        show(_table(details))
        for name, detail in details.items():
            if detail.failure is not None:
                show("", f"{name}: the audit failed: {detail.failure}")
            elif detail.kept_topics:
                left = detail.kept_topics
                show(
                    "",
                    f"{name}: {counted(left, 'topic')} did not come from the primary and stay, unconfirmed",
                    f"  see them: fanout audit {name} --list",
                    f"  only if they are deleted there: fanout audit {name} --confirm {left}",
                )
    elif not faults:
        show("the node has no links")
    for fault in faults.values():
        print_error(fault)
    if faults:
        raise typer.Exit(exit_code_of(list(faults.values())[-1]))
    wrong = any(detail.failure is not None or detail.kept_topics for detail in details.values())
    raise typer.Exit(ExitCode.NO if wrong else ExitCode.OK)


def _audit_each(
    client: NodeClient, names: Iterable[str], *, confirm: int | None
) -> tuple[dict[str, AuditDetail], dict[str, FanoutError]]:
    """Audit one link after another; return the results, and the errors of the others.

    When the node stops answering, the remaining links are skipped; that error is the last one.
    """
    details: dict[str, AuditDetail] = {}
    faults: dict[str, FanoutError] = {}
    for name in names:
        try:
            details[name] = client.audit(name, confirmed=confirm)
        except FanoutError as error:
            faults[name] = error
            if not isinstance(error, AuditRefused):
                break
    return details, faults


def _list_unconfirmed(client: NodeClient, names: Iterable[str], *, as_json: bool) -> ExitCode:
    """Show the unconfirmed topics of links; all topics as JSON, else their branches."""
    from fanout.cli.output.quantities import as_count, counted
    from fanout.cli.output.terminal import columns, print_json, show

    pages = {name: client.unconfirmed(name) for name in names}
    if as_json:
        print_json({name: _whole(client, page) for name, page in pages.items()})
    for name, page in pages.items() if not as_json else ():
        if not page.unconfirmed:
            show(f"{name}: no topic is unconfirmed")
            continue
        show(f"{name}: {counted(page.unconfirmed, 'topic')} did not come from the primary: {page.causes}", "")
        table = columns("topics", "below", right=("topics",))
        for one in page.branches:
            table.add_row(as_count(one.topics), one.branch)
        show(table)
    return ExitCode.NO if any(page.unconfirmed for page in pages.values()) else ExitCode.OK


def _whole(client: NodeClient, page: UnconfirmedDocument) -> dict[str, Any]:
    """Return the document of a link with the topics of all pages."""
    document, topics = page.model_dump(mode="json", exclude={"next"}), list(page.topics)
    while page.next is not None and len(topics) < _TOPICS_MAX:
        page = client.unconfirmed(page.link, after=page.next)
        topics += page.topics
    return document | {"topics": topics}


def _names(node: NodeStatus, link: str | None) -> list[str]:
    """Return the names of the links to audit.

    Raises:
        AuditRefused: The node has no such link.
    """
    names = [one.name for one in node.links]
    if link is None:
        return names
    if link not in names:
        theirs = f"Its links are {', '.join(names)}" if names else "It has no links"
        raise AuditRefused(f"{node.node} has no link {link}", hint=f"{theirs}; the address of a node goes with --url")
    return [link]


def _table(details: dict[str, AuditDetail]) -> Table:
    from fanout.cli.output.quantities import as_count, as_duration
    from fanout.cli.output.terminal import columns

    numbers = ("checked", "changed", "removed", "left in place", "took")
    table = columns("link", *numbers, right=numbers)
    for name, one in details.items():
        table.add_row(
            name,
            as_count(one.checked_topics),
            as_count(one.changed_topics),
            as_count(one.removed_topics),
            as_count(one.kept_topics),
            as_duration(one.took_seconds),
        )
    return table
