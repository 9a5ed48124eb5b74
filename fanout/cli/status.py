"""`fanout status` and `fanout lag`: status and lag of a running node."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from fanout.cli.arguments.node_options import DEFAULT_URL, AskingCommand, JsonOption, TokenOption, UrlOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from fanout.api.models import (
        AuditDetail,
        LagDocument,
        LinkDetail,
        LogStatus,
        NodeStatus,
        RetainedStatus,
        SamplingDetail,
        ServerStatus,
    )

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(cls=AskingCommand, epilog="Exit codes: 0 shown, ready or not; 3 unreachable.")(status)
    app.command(cls=AskingCommand, epilog="Exit codes: 0 shown, 3 unreachable.")(lag)


def status(url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Show a node in full: links, server, replication log."""
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import facts, print_json, show

    with NodeClient(url, token_file=token_file) as client:
        if as_json:
            print_json(client.document("/v1/status"))
            return
        node = client.status()
    show(facts(*_node_facts(node)))
    if node.links:
        show("", _links_table(node), "", _selectors_table(node.links))
    for link in node.links:
        show("", facts(*_link_facts(link)))
    if node.server is not None:
        show("", facts(*_server_facts(node.server)))
    if node.log is not None:
        show("", facts(*_log_facts(node.log)))
    if node.retained is not None:
        show("", facts(*_retained_facts(node.retained)))


def lag(url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Show how far each link is behind its primary.

    An unknown value is shown as a dash, never as zero.
    """
    from fanout.cli.asking.client import NodeClient
    from fanout.cli.output.terminal import print_json, show

    with NodeClient(url, token_file=token_file) as client:
        if as_json:
            print_json(client.document("/v1/lag"))
            return
        document = client.lag()
    if not document.links:
        show(f"{document.node} ({document.role}) has no links")
        return
    show(_lag_table(document))
    details = [f"{link.name}: {link.detail}" for link in document.links if link.detail]
    if details:
        show("", *details)


def _node_facts(node: NodeStatus) -> Iterator[tuple[str, RenderableType]]:
    from fanout.cli.output.quantities import as_duration
    from fanout.cli.output.terminal import lines

    yield "node", f"{node.node} ({node.role})"
    yield "ready", lines("yes", style="green") if node.ready else lines(*_reasons(node), style="red")
    yield "serves", ", ".join(node.listeners) or "no MQTT clients"
    yield "running", f"fanout {node.version} for {as_duration(node.uptime_seconds)}"


def _reasons(node: NodeStatus) -> tuple[str, ...]:
    first, *others = node.reasons
    return f"no: {first}", *others


def _links_table(node: NodeStatus) -> Table:
    from fanout.cli.output.quantities import as_bytes, as_count, as_duration
    from fanout.cli.output.terminal import columns, state_text

    now = node.started + timedelta(seconds=node.uptime_seconds)  # the node's clock, not this machine's
    table = columns("link", "state", "for", "topics", "payload", "received", "sessions", right=_NUMBERS)
    for link in node.links:
        table.add_row(
            link.name,
            state_text(link.state),
            as_duration(max(0.0, (now - link.since).total_seconds())),
            as_count(link.topics),
            as_bytes(link.payload_bytes),
            as_count(link.received_total),
            as_count(link.epochs_total),
        )
    return table


_SKIPPED_SHOWN = 5
_NUMBERS = ("topics", "payload", "received", "sessions", "heartbeat age", "lag", "items")


def _selectors_table(links: tuple[LinkDetail, ...]) -> Table:
    from fanout.cli.output.quantities import UNKNOWN, as_topics
    from fanout.cli.output.terminal import columns

    table = columns("link", "topics", "complete", "evidence", "digest", "selector", right=_NUMBERS)
    for link in links:
        for one in link.selectors:
            complete = "yes" if one.complete else "joining" if one.joining else "no"
            topics = as_topics(one.topics, maybe_unreadable=one.maybe_unreadable)
            table.add_row(link.name, topics, complete, one.evidence or UNKNOWN, one.digest, one.filter)
    return table


def _link_facts(link: LinkDetail) -> Iterator[tuple[str, str]]:
    from fanout.cli.output.quantities import as_count, as_duration, counted

    yield "link", link.name
    yield "primary", link.primary
    if link.stale_seconds:
        yield "values", f"last known to be current {as_duration(link.stale_seconds)} ago"
    if link.stale_left_seconds is not None:
        yield "stale", f"for at most {as_duration(link.stale_left_seconds)} more"
    if link.snapshot_seconds is not None:
        yield "snapshot", f"{counted(link.snapshot_topics, 'topic')} in {as_duration(link.snapshot_seconds)}"
    if link.audit is not None:
        yield "audit", link.audit.failure or _audit_figures(link.audit)
    if link.sampling.samples_total or link.sampling.off is not None:
        yield "samples", _sample_figures(link.sampling)
    if link.alarm is not None:
        yield "alarm", link.alarm
    if link.count_difference is not None:
        yield "count", link.count_difference
    troubles = (
        (link.reconnects_total, "reconnects"),
        (link.truncated_total, "truncated snapshots"),
        (link.outside_total, "messages outside the selectors"),
        (link.refused_total, "values refused by a limit"),
    )
    had = [f"{what} {as_count(count)}" for count, what in troubles if count]
    for selector in link.selectors:
        unfit = [f"{reason} {as_count(count)}" for reason, count in sorted(selector.unfit_total.items())]
        if unfit:
            yield "left out", f"of {selector.filter}: {', '.join(unfit)}"
    if link.not_held_reason is not None:
        yield "not held", link.not_held_reason
    if skipped := _by_kind(link.skipped_total):
        yield "skipped", skipped
    for one in link.skipped_newest[:_SKIPPED_SHOWN]:
        yield "", f"{one.at:%H:%M:%S} UTC {one.topic or 'no topic'}: {one.detail or one.reason}"
    if breaches := _by_kind(link.tolerated_total):
        yield "breaches", breaches
    if had:
        yield "troubles", ", ".join(had)
    if link.last_error is not None:
        yield "error", link.last_error
        if link.last_error_at is not None:
            over = "; over, the link has been live since" if link.last_error_over else ""
            yield "", f"at {link.last_error_at:%Y-%m-%d %H:%M:%S} UTC{over}"
        if link.hint is not None and not link.last_error_over:
            yield "", link.hint


def _by_kind(counts: dict[str, int]) -> str:
    from fanout.cli.output.quantities import as_count

    return ", ".join(f"{kind} {as_count(count)}" for kind, count in counts.items() if count)


def _audit_figures(audit: AuditDetail) -> str:
    from fanout.cli.output.quantities import as_count, counted

    changed, removed = as_count(audit.changed_topics), as_count(audit.removed_topics)
    figures = f"{counted(audit.checked_topics, 'topic')}, {changed} repaired, {removed} removed"
    return f"{figures}, at {audit.ended:%Y-%m-%d %H:%M:%S} UTC"


def _sample_figures(sampling: SamplingDetail) -> str:
    from fanout.cli.output.quantities import as_count, counted

    differing = as_count(sampling.missing_total + sampling.changed_total)
    figures = f"{counted(sampling.topics_total, 'topic')} asked by name, {differing} differed"
    return figures if sampling.off is None else f"{figures}; off: {sampling.off}"


def _server_facts(server: ServerStatus) -> Iterator[tuple[str, str]]:
    from fanout.cli.output.quantities import as_bytes, as_count, counted

    yield "clients", f"{as_count(server.connections)} connected, {counted(server.sessions, 'session')}"
    yield "", f"{counted(server.subscriptions, 'subscription')} in {counted(server.audiences, 'audience')}"
    yield "retained", counted(server.retained_topics, "topic")
    if not server.own_complete:
        yield "", f"own topics incomplete: over {' and '.join(server.own_short_by)}"
    yield "delivered", f"{counted(server.deliveries_total, 'message')}, {as_bytes(server.sent_bytes_total)}"
    yield "received", counted(server.received_total, "message")
    yield "queued", f"{counted(server.queued_messages, 'message')}, {as_bytes(server.queued_bytes)}"
    if server.conflated_total:
        waiting = counted(server.conflated_topics, "value")
        yield "conflated", f"{counted(server.conflated_total, 'message')}, {waiting} waiting"
    dropped = [f"{reason} {as_count(count)}" for reason, count in sorted(server.dropped_total.items()) if count]
    yield "dropped", ", ".join(dropped) or "nothing"


def _log_facts(log: LogStatus) -> Iterator[tuple[str, str]]:
    from fanout.cli.output.quantities import as_bytes, as_count, as_duration, counted

    yield "log", log.directory
    yield "written", f"{counted(log.rows_total, 'row')}, {as_bytes(log.written_bytes_total)}"
    yield "waiting", f"{counted(log.queued_rows, 'row')}, {as_count(log.unsynced_rows)} not on the disk yet"
    yield "lost", counted(log.lost_rows_total, "row")
    if log.archive is not None:
        yield "kept", f"{counted(log.archive.kept_files, 'file')}, {as_bytes(log.archive.kept_bytes)}"
    if log.ship_to is not None and log.archive is not None:
        since = f", the oldest for {as_duration(age)}" if (age := log.archive.oldest_waiting_seconds) else ""
        yield "shipped", f"{counted(log.archive.shipped_files_total, 'file')} to {log.ship_to}"
        yield "to ship", f"{counted(log.archive.waiting_files, 'file')}{since}"
    if log.alarm is not None:
        yield "alarm", log.alarm


def _retained_facts(retained: RetainedStatus) -> Iterator[tuple[str, str]]:
    from fanout.cli.output.quantities import as_bytes, counted

    yield "on disk", retained.file
    yield "size", as_bytes(retained.file_bytes)
    yield "waiting", f"{counted(retained.waiting_rows, 'value')}, not acknowledged yet"
    if retained.alarm is not None:
        yield "alarm", retained.alarm


def _lag_table(document: LagDocument) -> Table:
    from fanout.cli.output.quantities import as_count, as_duration
    from fanout.cli.output.terminal import columns, state_text

    table = columns("link", "state", "lag", "items", "basis", "heartbeat age", "received", "topics", right=_NUMBERS)
    for link in document.links:
        table.add_row(
            link.name,
            state_text(link.state),
            as_duration(link.lag_seconds),
            as_count(link.items_behind),
            link.basis,
            as_duration(link.heartbeat_age_seconds),
            as_count(link.received_total),
            as_count(link.topics),
        )
    return table
