"""JSON in the detail of an event: the links and selectors of a `start`, the rows lost in a `gap`.

Owns those two shapes on the reading side. A value of another shape than the documented one counts as absent. This
includes unbounded numbers and text that is not UTF-8, on which the queries of a report would fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "CONTROL_TOPIC",
    "GapRecord",
    "Limits",
    "LinkConfig",
    "Selection",
    "parse_alarm_detail",
    "parse_gap_detail",
    "parse_start_detail",
]

_ALARM_REASONS: Final = ("selector", "branch", "refusal", "error", "reason", "limit", "causes")
"""Fields of a log line that say what it is about, and why."""
_TEXT_MAX: Final = 512
_WHOLE_MAX: Final = 2**62
"""Largest number that is taken for one: the sum of two fits a column of 64 bits."""
_AGE_S_MAX: Final = 1e9
_WRONG: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""Another shape: `int` raises OverflowError for 1e999, `json.loads` RecursionError for brackets without end."""

CONTROL_TOPIC: Final = "fanout/control"
"""The control topic of a link that does not say another."""


@dataclass(frozen=True, slots=True)
class GapRecord:
    """One `gap` event: rows that a node could not log, or lost in a crash."""

    node: str
    link: str
    """The link whose rows were lost; "" for rows published at the node, or for all."""
    lost_epoch: int
    """The node epoch whose rows were lost."""
    first_us: int | None
    """Rows of this time and later may be missing; None when the time is not known."""
    last_us: int
    last_pos: int
    """The last position that may be missing; 0 when it is not known, as after a crash."""
    lost_positions: int
    """Number of positions known to be missing; 0 after a crash."""
    first_pos: int = 0
    """The first position that may be missing; 0 when it is not known."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Messages that a selector leaves out by its settings, or its link by those of its own."""

    payload_max: int = 0
    """Bytes of the largest payload that it takes; 0 for no limit."""
    retained_only: bool = False
    """True if it takes messages with RETAIN only."""
    live_only: bool = False
    """True if it takes no retained values."""
    content: bool = False
    """True if it takes some kinds of content only, which no log tells."""
    max_age_s: float = 0.0
    """Age above which its primary may send the newest of each topic alone; 0 for no bound."""
    max_age_qos: int = 0
    """Highest QoS of messages that may be left out for that."""

    @property
    def keeps_values_out(self) -> bool:
        """True if retained values of the primary may be left out, so that those of both cannot be compared."""
        return bool(self.live_only or self.content or self.payload_max)


@dataclass(frozen=True, slots=True, order=True)
class Selection:
    """A filter with its excludes: what a selector takes."""

    filter: str
    exclude: tuple[str, ...] = ()
    control_topic: str = CONTROL_TOPIC
    """Topics below it are the links' talk with themselves, which a primary logs and no link applies."""
    limits: Limits = field(default=Limits(), compare=False)
    """Messages of its topics that it leaves out; two selections that differ in these alone take the same topics."""

    @property
    def reaches_control(self) -> bool:
        """True if the filter can match a topic below the control topic."""
        wanted, control = self.filter.split("/"), self.control_topic.split("/")
        if control[0].startswith("$") and wanted[0] in ("+", "#"):
            return False
        for level, own in zip(wanted, control, strict=False):
            if level == "#":
                return True
            if level not in ("+", own):
                return False
        return len(wanted) > len(control)


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """A link as its node's `start` event describes it."""

    name: str
    addresses: tuple[str, ...]
    selections: tuple[Selection, ...]


def parse_gap_detail(detail: str, *, node: str, link: str, node_epoch: int, at_us: int) -> GapRecord:
    """Return what a `gap` event's detail says; one that says nothing means that anything before may be lost.

    Args:
        detail: The JSON that `fanout.replog.files.schema` describes.
        node: The node that wrote the event.
        link: The event's link.
        node_epoch: The epoch that wrote the event.
        at_us: The event's time.
    """
    try:
        document = json.loads(detail)
        first_us, last_us, last_pos = (document[key] for key in ("first_us", "last_us", "last_log_pos"))
        return GapRecord(
            node=node,
            link=link,
            lost_epoch=_whole(document["node_epoch"]),
            # No row is older than the process that logged it.
            first_us=_whole(document["node_epoch"] if first_us is None else first_us),
            last_us=at_us if last_us is None else _whole(last_us),
            last_pos=0 if last_pos is None else _whole(last_pos),
            lost_positions=0 if document["rows"] is None else _whole(document["rows"]) + _whole(document["events"]),
            first_pos=_whole(document["first_log_pos"] or 0),
        )
    except _WRONG:
        return GapRecord(node, link, node_epoch, None, at_us, _WHOLE_MAX, 0)


def parse_alarm_detail(detail: str) -> tuple[str, str, str]:
    """Return the message of an `alarm`, or the reason of a `skipped`; what it is about and why; and its hint.

    Each is empty where the detail does not say it.
    """
    try:
        document = json.loads(detail)
        if "messages" in document:
            return _shown(document["reason"]), "", ""
        reason = ", ".join(str(document[name]) for name in _ALARM_REASONS if document.get(name))
        return _shown(document["message"]), _shown(reason), _shown(document.get("hint") or "")
    except _WRONG:
        return "", "", ""


def parse_start_detail(detail: str) -> tuple[LinkConfig, ...] | None:
    """Return the links that a `start` event's detail describes, or None when it has another shape.

    The shape, in which unknown keys are ignored::

        {"format": 1, "version": "0.1.0",
         "links": [{"name": "plant", "primary": ["mqtt://127.0.0.1:1883"],
                    "control_topic": "fanout/control", "max_age_s": 1.0, "max_age_qos": 1,
                    "selectors": [{"filter": "plant/#", "exclude": ["plant/debug/#"],
                                   "qos": 1, "prefix": "", "max_payload": 1000}]}]}

    The limits, from `max_age_s` on and from `max_payload` on, are there only if they are set.
    """
    try:
        document = json.loads(detail)
        if document["format"] != 1:
            return None
        return tuple(_link_config(link) for link in document["links"])
    except _WRONG:
        return None


def _link_config(link: Mapping[str, Any]) -> LinkConfig:
    control_topic = _text(link.get("control_topic", CONTROL_TOPIC))
    selections = [
        Selection(
            _text(one["filter"]), tuple(sorted(map(_text, one.get("exclude", ())))), control_topic, _limits(link, one)
        )
        for one in link["selectors"]
    ]
    return LinkConfig(_text(link["name"]), _addresses(link["primary"]), tuple(sorted(selections)))


def _limits(link: Mapping[str, Any], selector: Mapping[str, Any]) -> Limits:
    max_age_s = float(link.get("max_age_s", 0))
    if not 0 <= max_age_s <= _AGE_S_MAX:  # NaN too
        raise ValueError("an age out of bounds")
    return Limits(
        payload_max=_whole(selector.get("max_payload", 0)),
        retained_only=bool(selector.get("retained_only")),
        live_only=bool(selector.get("live_only")),
        content=bool(selector.get("content")),
        max_age_s=max_age_s,
        max_age_qos=min(_whole(link.get("max_age_qos", 0)), _whole(selector.get("qos", 2))),
    )


def _addresses(primary: object) -> tuple[str, ...]:
    if isinstance(primary, str):
        return (_text(primary),)
    if isinstance(primary, list):
        return tuple(map(_text, primary))
    raise TypeError("primary is neither an address nor a list of addresses")


def _whole(value: Any) -> int:
    number = int(value)
    if not 0 <= number <= _WHOLE_MAX:
        raise ValueError("a number out of bounds")
    return number


def _text(value: object) -> str:
    text = str(value)
    text.encode()  # UnicodeEncodeError for half of a surrogate pair, which JSON can name
    return text


def _shown(value: object) -> str:
    return str(value)[:_TEXT_MAX].encode(errors="replace").decode()
