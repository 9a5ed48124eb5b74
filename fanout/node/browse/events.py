"""Newest events of a node, in memory, as sentences."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any, Final

from fanout.api.browse.models import EventsDocument, EventView
from fanout.api.models import utc_from_ns
from fanout.escaping import printable

__all__ = ["NodeEvents", "sentence"]

_REMEMBERED: Final = 2_000
"""Events that are remembered; older ones are in the replication log only."""
_TEXT_MAX: Final = 400
_NAME_MAX: Final = 60
_PING_S: Final = 15.0
_QUIET: Final = frozenset({"heartbeat"})
"""Kinds of events that tell nothing new."""
_TOLD: Final = frozenset({"audit ended", "replica torn down", "snapshot complete"})
"""Warnings of links that tell nothing beyond the event of the same moment."""
_STATES: Final = {
    "connecting": "connects to the primary",
    "snapshot": "takes the retained values",
    "proving": "proves that it has all retained values",
    "live": "is live",
    "resuming": "resumes its session and takes the messages that waited for it",
    "verifying": "compares its values with the primary",
    "stalled": "is stalled",
    "tearing_down": "removes its values",
    "stale": "serves stale values",
    "down": "is down",
}


class NodeEvents:
    """Newest events of a node."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Remember nothing yet.

        Args:
            now_ns: Tells Unix time in nanoseconds.
        """
        self._now_ns = now_ns
        self._events: deque[EventView] = deque(maxlen=_REMEMBERED)
        self._number = 0
        self.process = secrets.token_hex(4)
        """Name of this process's events: their numbers begin anew in the next one."""
        self._readers: set[asyncio.Event] = set()
        self._closed = False

    def add(self, kind: str, *, link: str = "", state: str = "", selector: str = "", detail: str = "") -> None:
        """Remember an event; arguments as in the replication log."""
        if kind in _QUIET or (kind == "alarm" and _facts(detail).get("message") in _TOLD):
            return
        self._number += 1
        text = sentence(kind, link=link, state=state, selector=selector, detail=detail)
        self._events.append(
            EventView(
                id=self._number,
                at=utc_from_ns(self._now_ns()),
                kind=kind,
                link=link or None,
                state=state,
                text=printable(text, length_max=_TEXT_MAX),
            )
        )
        for reader in self._readers:
            reader.set()

    def page(self, *, before: int | None, limit: int) -> EventsDocument:
        """Return a page of events, the newest first."""
        found = [one for one in reversed(self._events) if before is None or one.id < before]
        return EventsDocument(
            process=self.process,
            events=tuple(islice(found, limit)),
            next=found[limit - 1].id if len(found) > limit else None,
        )

    async def read(self, *, last_id: str) -> AsyncIterator[EventView | None]:
        """Yield the events after `{process}-{id}`, then each new one; None now and then while there is none.

        A reader of an earlier process, or of none, gets all that are remembered.
        """
        process, _, number = last_id.partition("-")
        is_known = process == self.process and number.isascii() and number.isdecimal() and len(number) < 18
        newest = int(number) if is_known else 0
        woken = asyncio.Event()
        self._readers.add(woken)
        try:
            while not self._closed:
                woken.clear()
                for event in [one for one in self._events if one.id > newest]:
                    newest = event.id
                    yield event
                if not woken.is_set() and not self._closed:
                    try:
                        async with asyncio.timeout(_PING_S):
                            await woken.wait()
                    except TimeoutError:
                        yield None
        finally:
            self._readers.discard(woken)

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        for reader in self._readers:
            reader.set()


def sentence(kind: str, *, link: str, state: str, selector: str, detail: str) -> str:
    """Return an event as a sentence, without a full stop.

    Args:
        kind: Kind of the event, as in the replication log, like the others.
        link: The link; empty for the node.
        state: State that it entered.
        selector: Topic Filter of the selector.
        detail: Text, or JSON by the kind.
    """
    facts = _facts(detail)
    if detail.startswith("{") and not facts:  # it was cut
        return _as_logged(kind, detail)
    match kind:
        case "start":
            return "The node started"
        case "stop":
            return "The node stopped"
        case "state":
            reason = str(facts.get("reason") or "") if facts else detail
            return f"Link {link} {_STATES.get(state, f'is {state}')}" + (f": {reason}" if reason else "")
        case "complete":
            return f"Link {link} has all retained values of {selector}"
        case "audit":
            return _audit(link, facts)
        case "unconfirmed":
            count = facts.get("unconfirmed", 0)
            if not count:
                return f"Link {link} has no unconfirmed topics any more"
            return f"Link {link} has {_counted(count, 'topic')} that the primary did not send in the last comparison"
        case "moved":
            came, went = facts.get("came", 0), facts.get("went", 0)
            return " and ".join(
                f"{_counted(number, 'session')} {verb} another member of the pool"
                for number, verb in ((came, "came from"), (went, "went to"))
                if number
            )
        case "pool_alarm":
            return f"In the pool: {detail}"
        case "pool_over":
            return f"In the pool, no longer: {detail}"
        case "clients_slow":
            return f"{_clients(facts)} slowly: messages wait, at QoS 0 the newest of each topic; see Clients"
        case "clients_caught_up":
            return f"{_clients(facts)} slowly no more: caught up, or gone"
        case "tear_down":
            return f"Link {link} removed its values: {detail}"
        case "skipped":
            skipped = _counted(facts.get("messages", 0), "message")
            return f"Link {link} skipped {skipped}: {_words(facts.get('reason'))}"
        case "alarm":
            message, hint = facts.get("message", ""), facts.get("hint", "")
            reason = facts.get("reason") or facts.get("error") or ""
            text = ": ".join(str(part) for part in (message, reason) if part)
            return f"Link {link}: {text}" + (f" ({hint})" if hint else "")
        case "log_alarm":
            return detail[:1].upper() + detail[1:] if detail else "The replication log is written again"
        case "retained_alarm":
            return f"Values cannot be kept on disk: {detail}" if detail else "Values are kept on disk again"
        case _:
            return _as_logged(kind, detail)


def _as_logged(kind: str, detail: str) -> str:
    return f"{_words(kind).capitalize()}: {detail}" if detail else _words(kind).capitalize()


def _audit(link: str, facts: dict[str, Any]) -> str:
    if facts.get("failure"):
        return f"Link {link} could not be compared with the primary: {facts['failure']}"
    checked, changed = int(facts.get("checked", 0)), int(facts.get("changed", 0))
    removed, kept = int(facts.get("removed", 0)), int(facts.get("kept", 0))
    if not changed and not removed and not kept:
        return f"Link {link} was compared with the primary, {_counted(checked, 'topic')}: all equal"
    return (
        f"Link {link} was compared with the primary, {_counted(checked, 'topic')}: {changed:,} repaired, "
        f"{removed:,} removed, {kept:,} kept without confirmation"
    )


def _clients(facts: dict[str, Any]) -> str:
    """Return the begin of a sentence about clients, with its verb."""
    number, names = int(facts.get("clients", 0)), [str(name) for name in facts.get("names", [])]
    if number == 1 and names:
        return f"Client {names[0][:_NAME_MAX]} reads"
    further = f" and {number - len(names):,} more" if number > len(names) else ""
    named = ", ".join(name[:_NAME_MAX] for name in names)
    return f"{_counted(number, 'client')} ({named}{further}) {'reads' if number == 1 else 'read'}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _words(reason: object) -> str:
    return str(reason or "unknown").replace("_", " ")


def _facts(detail: str) -> dict[str, Any]:
    """Return the JSON object in a detail; empty for other text."""
    if not detail.startswith("{"):
        return {}
    try:
        facts = json.loads(detail)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
