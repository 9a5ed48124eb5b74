"""`fanout audit`: make a node compare its replicas with its primaries, and repair them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, JsonOption, UrlOption
from fanout.cli.exit_codes import ExitCode, exit_code_of
from fanout.errors import AuditRefused, FanoutError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from fanout.api.models import AuditDetail, NodeStatus
    from fanout.cli.client import NodeClient

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 equal now; 1 topics left in place, or an audit failed; 3 unreachable; 5 one cannot begin."
    )(audit)


def audit(
    link: Annotated[str | None, typer.Argument(metavar="LINK", help="Name of a link; all links without it.")] = None,
    url: UrlOption = DEFAULT_URL,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Remove whatever the primary does not have, however much it is.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare a node's replicas with their primaries and repair them.

    Every live link takes the retained sets again, inside its session. Local clients get what was missed, and
    nothing that is unchanged. Topics that the primary does not have any more are removed, if they are not more than
    max_removed_percent of the link allows.
    """
    from fanout.cli.client import NodeClient
    from fanout.cli.output.terminal import print_error, print_json, show

    with NodeClient(url) as client:
        names = _names(client.status(), link)
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
                show("", f"{name}: if these topics are gone at the primary: fanout audit {name} --confirm")
    elif not faults:
        show("the node has no links")
    for fault in faults.values():
        print_error(fault)
    if faults:
        raise typer.Exit(exit_code_of(list(faults.values())[-1]))
    wrong = any(detail.failure is not None or detail.kept_topics for detail in details.values())
    raise typer.Exit(ExitCode.NO if wrong else ExitCode.OK)


def _audit_each(
    client: NodeClient, names: Iterable[str], *, confirm: bool
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
