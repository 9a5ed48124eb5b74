"""`fanout trace`: follow the next message of a topic through the nodes of a chain and a pool.

Each node's stream tells when the node received it, by its own clock. The command compares each clock with its own by
questions over HTTP, so half of the quickest question's time is the uncertainty of a clock.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from fanout.cli.arguments.node_options import TokenOption, UrlsArgument, UrlsOption
from fanout.cli.output.exit_codes import ExitCode
from fanout.errors import FanoutError, NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from fanout.api.browse.models import LiveValue
    from fanout.api.models import NodeStatus, PoolDocument

__all__ = ["register"]

T = TypeVar("T")

_QUESTIONS: Final = 5
"""Questions to each node for the time of its clock; the quickest counts."""
_NODES_MAX: Final = 64
_TOO_MANY: Final = f"{_NODES_MAX} nodes are asked at most"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 it came to all nodes; 1 not to all, or none came; 2 a wrong option; 3 unreachable; "
        "5 refused."
    )(trace)


@dataclass(slots=True)
class _Hop:
    """One node on the way."""

    url: str
    status: NodeStatus
    clock_s: float
    """Seconds by which its clock is ahead of this command's."""
    doubt_s: float
    """Uncertainty of that, in seconds, to both sides."""
    seen: LiveValue | None = None
    """The message, as this node received it."""
    readers: int | None = None
    """Sessions that subscribe to the topic; None if unknown."""
    conflated: int = 0
    """Messages of the topic that its stream left out: more came than it carries."""

    @property
    def node(self) -> str:
        return self.status.node

    @property
    def above(self) -> str | None:
        """Name of the fanout node that is its primary; None for another primary, and for several."""
        names = {path.split(" > ")[-1] for link in self.status.links for path in link.paths_above}
        return names.pop() if len(names) == 1 else None

    @property
    def received_s(self) -> float:
        """When it received the message, in Unix time by this command's clock."""
        assert self.seen is not None
        return self.seen.received.timestamp() - self.clock_s


def trace(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic Name, the same at all nodes.")],
    urls: UrlsArgument,
    *,
    named: UrlsOption = None,
    token_file: TokenOption = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time for a message to come.")] = 60,
    within: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Then: time to come to the others.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the way as JSON and nothing else.")] = False,
) -> None:
    """Follow the next message of a topic through nodes and pools.

    Shows when each node received it, how long after the node above, and how many sessions subscribe to it.
    """
    from fanout.cli.output.terminal import print_json, show

    if any(one in topic for one in "+#\0") or not topic:
        raise typer.BadParameter("a Topic Name has no wildcards and is not empty", param_hint="TOPIC")
    hops, left_out = _find(named or urls, token_file)
    _follow(topic, hops, token_file, wait_s=wait, within_s=within)
    hops.sort(key=lambda hop: (hop.seen is None, hop.seen is not None and hop.received_s, hop.node))
    if as_json:
        print_json(_document(topic, hops, left_out))
    else:
        show(*_lines(topic, hops, left_out, wait_s=wait, within_s=within))
    raise typer.Exit(ExitCode.OK if all(hop.seen is not None for hop in hops) else ExitCode.NO)


def _find(urls: Sequence[str], token_file: Path | None) -> tuple[list[_Hop], list[str]]:
    """Return the nodes at these addresses and the other members of their pools, and those that do not answer.

    Raises:
        NodeUnreachable: A node at one of the addresses cannot be reached.
        RequestRefused: Such a node refuses.
    """
    hops: dict[str, _Hop] = {}
    left_out = dict.fromkeys(urls[_NODES_MAX:], _TOO_MANY)
    waiting = dict.fromkeys(urls[:_NODES_MAX], "")
    asked = set(waiting)
    while waiting:
        some, waiting = waiting, {}
        for (url, member), found in zip(some.items(), _at_once(_ask, some, token_file), strict=True):
            if isinstance(found, FanoutError):
                if not member:
                    raise found
                left_out[member] = found.message
                continue
            hop, pool = found
            hops.setdefault(hop.node, hop)
            if pool is None:
                continue
            members, silent = pool.others_to_ask(needs_tls=token_file is not None and url.startswith("https:"))
            left_out |= silent
            for name, its_url in members.items():
                if its_url in asked:
                    continue
                if len(asked) == _NODES_MAX:
                    left_out[name] = _TOO_MANY
                else:
                    asked.add(its_url)
                    waiting[its_url] = name
    above = {name for hop in hops.values() for link in hop.status.links for name in _names(link.paths_above)}
    left_out |= dict.fromkeys(sorted(above - hops.keys()), "it is above these; give its URL too")
    return list(hops.values()), [f"{name}: {why}" for name, why in left_out.items() if name not in hops]


def _at_once(ask: Callable[[str, Path | None], T], urls: Iterable[str], token_file: Path | None) -> list[T]:
    """Return what a function returns for each of these nodes, in their order; those that are away wait together."""
    with ThreadPoolExecutor(_NODES_MAX) as threads:
        return list(threads.map(lambda url: ask(url, token_file), urls))


def _ask(url: str, token_file: Path | None) -> tuple[_Hop, PoolDocument | None] | FanoutError:
    """Return the node at an address and its pool, None if it is in none; its error if it does not answer."""
    from fanout.cli.asking.client import NodeClient

    try:
        with NodeClient(url, token_file=token_file) as client:
            status = client.status()
            pool = None if status.pool is None else client.pool()
            return _Hop(url, status, *_clock(client)), pool
    except FanoutError as error:
        return error


def _count_readers(url: str, token_file: Path | None, *, topic: str) -> int | None:
    """Return how many sessions subscribe to a topic at a node.

    Raises:
        NodeUnreachable: It cannot be reached any more.
    """
    from fanout.cli.asking.client import NodeClient

    with NodeClient(url, token_file=token_file) as client:
        return client.topic(topic).readers


def _names(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        yield from path.split(" > ")


def _clock(client: Any) -> tuple[float, float]:
    """Return what a node's clock is ahead of this command's, and the uncertainty of that, in seconds.

    Raises:
        NodeUnreachable: The node is of a version that does not tell its time.
    """
    found: list[tuple[float, float]] = []
    for _ in range(_QUESTIONS):
        asked_s, began_s = time.time(), time.perf_counter()
        at = client.lag().at
        took_s = time.perf_counter() - began_s
        if at is None:
            raise NodeUnreachable(f"{client.url} does not tell the time", hint="Upgrade the node")
        found.append((took_s / 2, at.timestamp() - asked_s - took_s / 2))
    doubt_s, ahead_s = min(found)
    return ahead_s, doubt_s


def _follow(topic: str, hops: list[_Hop], token_file: Path | None, *, wait_s: float, within_s: float) -> None:
    """Give each node the next message, and its readers; None where it did not come.

    Raises:
        NodeUnreachable: A node cannot be reached any more.
        RequestRefused: A node refuses: it is a tap.
    """
    from fanout.cli.output.terminal import error_console, show
    from fanout.escaping import printable

    arrived: queue.Queue[tuple[_Hop, LiveValue | FanoutError | None]] = queue.Queue()
    for hop in hops:  # daemons: streams have no end
        threading.Thread(target=_read, args=(hop, topic, token_file, arrived), daemon=True).start()
    listening: set[int] = set()
    early: list[tuple[_Hop, LiveValue]] = []
    first: LiveValue | None = None
    end_s = time.monotonic() + wait_s

    def arrivals() -> Iterator[tuple[_Hop, LiveValue | None]]:
        """Yield what comes until the time is up."""
        while True:
            try:
                hop, came = arrived.get(timeout=max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(came, FanoutError):
                raise came
            yield hop, came

    def has_passed(hop: _Hop, came: LiveValue) -> bool:
        """Return True for a message that came to some nodes before all of them listened."""
        for other, value in early:
            apart_s = abs((came.received - value.received).total_seconds() - hop.clock_s + other.clock_s)
            if _is_same(came, value) and (came.stamp is not None or apart_s < within_s):
                return True
        return False

    for hop, came in arrivals():
        if came is None:
            listening.add(id(hop))
            if len(listening) == len(hops):
                names = ", ".join(printable(hop.node) for hop in hops)
                show(f"Waits for a message of {printable(topic)} at {names}", console=error_console())
        elif len(listening) < len(hops):
            early.append((hop, came))
        elif not has_passed(hop, came):
            if first is None:
                first, end_s = came, time.monotonic() + within_s
            if hop.seen is None and _is_same(came, first):
                hop.seen = came
            if all(one.seen is not None for one in hops):
                break
    ask = partial(_count_readers, topic=topic)
    for hop, readers in zip(hops, _at_once(ask, [hop.url for hop in hops], token_file), strict=True):
        hop.readers = readers


def _read(
    hop: _Hop, topic: str, token_file: Path | None, arrived: queue.Queue[tuple[_Hop, LiveValue | FanoutError | None]]
) -> None:
    """Put the retained value, None once the stream of a node is live, each message, and the error that ends it."""
    from fanout.api.browse.models import LiveValue
    from fanout.cli.asking.client import NodeClient

    try:
        with NodeClient(hop.url, token_file=token_file) as client:
            for name, _, data in client.stream("/v1/stream", {"filter": topic}):
                if name == "live":
                    arrived.put((hop, None))
                elif name == "conflated":
                    hop.conflated += data["messages"]
                elif name in ("retained", "value"):
                    arrived.put((hop, LiveValue.model_validate(data)))
            raise NodeUnreachable(f"{hop.url} ended the stream", hint="The node stops: see its log")
    except FanoutError as error:
        arrived.put((hop, error))
    except ValueError:
        arrived.put((hop, NodeUnreachable(f"{hop.url} sends no messages", hint="Is it a fanout node?")))


def _is_same(one: LiveValue, other: LiveValue) -> bool:
    """Return True if two nodes received the same message: by its stamp, or its content if one has none."""
    if one.stamp is not None and other.stamp is not None:
        return one.stamp == other.stamp
    return (one.payload_bytes, one.format, one.value) == (other.payload_bytes, other.format, other.value)


def _since(hop: _Hop, hops: Sequence[_Hop]) -> _Hop | None:
    """Return the node that a lag is counted from: the one above, or else the first; None for the first itself."""
    named = {one.node: one for one in hops if one.seen is not None}
    above = named.get(hop.above or "")
    if above is not None:
        return above
    return hops[0] if hop is not hops[0] else None


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _document(topic: str, hops: Sequence[_Hop], left_out: Sequence[str]) -> dict[str, Any]:
    def one(hop: _Hop) -> dict[str, Any]:
        since = None if hop.seen is None else _since(hop, hops)
        return {
            "node": hop.node,
            "url": hop.url,
            "above": hop.above,
            "received": None if hop.seen is None else _utc(hop.received_s).isoformat(),
            "since": None if since is None else since.node,
            "lag_seconds": None if since is None else round(hop.received_s - since.received_s, 6),
            "uncertainty_seconds": round(hop.doubt_s + (since.doubt_s if since is not None else 0), 6),
            "clock_ahead_seconds": round(hop.clock_s, 6),
            "readers": hop.readers,
            "conflated": hop.conflated,
            "message": None if hop.seen is None else hop.seen.model_dump(mode="json"),
        }

    return {"topic": topic, "hops": [one(hop) for hop in hops], "not_asked": list(left_out)}


def _lines(
    topic: str, hops: Sequence[_Hop], left_out: Sequence[str], *, wait_s: float, within_s: float
) -> Iterator[RenderableType]:
    from fanout.cli.output.quantities import UNKNOWN, as_count
    from fanout.cli.output.terminal import columns
    from fanout.escaping import printable

    first = hops[0].seen
    if first is None:
        yield f"no message of {printable(topic)} came within {wait_s:g} s"
    else:
        form = "base64:" if first.format == "base64" else ""
        yield f"{printable(topic)}  {form}{printable(first.value, length_max=160)}"
        if first.stamp is not None:
            stamp = first.stamp
            yield f"number {stamp.sequence:,} of {printable(stamp.node)}, epoch {stamp.epoch}"
        if (
            parent := next((hop.seen.traceparent for hop in hops if hop.seen and hop.seen.traceparent), None)
        ) is not None:
            without = [hop.node for hop in hops if hop.seen is not None and hop.seen.traceparent != parent]
            lost = f", not at {', '.join(map(printable, without))}" if without else ""
            yield f"traceparent {printable(parent)}{lost}"
        yield ""
        table = columns("node", "received", "lag", "±", "since", "readers", right=("lag", "±", "readers"))
        for hop in hops:
            readers = UNKNOWN if hop.readers is None else as_count(hop.readers)
            if hop.seen is None:
                table.add_row(printable(hop.node), f"not within {within_s:g} s", UNKNOWN, UNKNOWN, UNKNOWN, readers)
                continue
            since = _since(hop, hops)
            received = f"{_utc(hop.received_s):%H:%M:%S.%f}"[:-3]
            lag = UNKNOWN if since is None else f"{1000 * (hop.received_s - since.received_s):.1f} ms"
            doubt = UNKNOWN if since is None else f"{1000 * (hop.doubt_s + since.doubt_s):.1f} ms"
            name = UNKNOWN if since is None else printable(since.node)
            table.add_row(printable(hop.node), received, lag, doubt, name, readers)
        yield table
    for hop in hops:
        if hop.conflated:
            yield f"{printable(hop.node)}: more came than a stream carries, so {hop.conflated:,} messages are not seen"
    if left_out:
        yield ""
        yield from (f"not asked: {printable(one)}" for one in left_out)
