"""Facts that a member of a pool tells the others about itself, and their form on the wire (core).

A document is a JSON object. A reader ignores keys that it does not know, so a member of the next version is understood;
`PROTOCOL` grows only when that is not enough. Nothing of a peer's document is believed before its form is checked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from fanout.chain.cut import Cut, cut_of_document
from fanout.config.values import is_server_reference
from fanout.peer_text import clean_text, is_node_name, read_document

__all__ = [
    "ASKER_HEADER",
    "DOCUMENT_BYTES_MAX",
    "PROTOCOL",
    "PROTOCOL_HEADER",
    "STATES",
    "MemberAnswer",
    "MemberFacts",
    "decode_answer",
    "encode_answer",
]

PROTOCOL: Final = 3
"""Version of what members say to each other."""
PROTOCOL_HEADER: Final = "fanout-pool-protocol"
"""Header field of every request, with the version of the member that asks."""
ASKER_HEADER: Final = "fanout-pool-member"
"""Header field with the `node.id` of the member that asks: it is told the cuts at its own heartbeats."""
DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""Longest document that is read from a peer: one with some 7,000 selectors."""
STATES: Final = frozenset({"ready", "not_ready", "draining", "stopping"})
"""States of a node."""

_TOKEN: Final = re.compile(r"[0-9a-f]{16,32}")
"""Form of what identifies a process, and of digests."""
_ADDRESS_CHARACTERS_MAX: Final = 1024
_COUNT_MAX: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """One member, as it describes itself."""

    node: str
    """Its `node.id`."""
    instance: str
    """Hexadecimal digits that no other process has; a member that reads its own has asked itself."""
    version: str
    """The version of fanout that it runs."""
    config_digest: str
    """Digest of what it replicates; equal for members with the same links and selectors."""
    state: str
    """One of `STATES`."""
    topics: int
    """Retained topics that its clients can read."""
    sessions: int
    """Sessions of its clients."""
    lag_s: float | None
    """Lag of its links, in seconds; None while that is not known of one of them."""
    moved_in: int
    """Sessions that came to it from other members."""
    moved_out: int
    """Sessions that left it for other members."""
    client_address: str | None = None
    """Address at which MQTT clients reach this member itself; None when it does not say."""
    http_port: int | None = None
    """TCP port of its HTTP interface; None without one."""
    http_tls: bool = False
    """True if that speaks TLS."""
    keeps_copies: bool = False
    """True if it keeps copies of the others' sessions."""
    sessions_copied: int | None = None
    """Its sessions of which another member keeps a copy; None where none are kept."""
    copies_held: int | None = None
    """Copies of other members' sessions that it keeps; None where it keeps none."""
    copies_late_s: float | None = None
    """For how long its oldest copy is on its way, in seconds; None where none are made."""
    history_s: float | None = None
    """Age of the oldest recent update that it holds, in seconds; None where it holds none."""
    history_used: float | None = None
    """Part of what it can hold that has come since the oldest message that waits for a session of it."""
    interruptions: int = 0
    """Number of interruptions of its streams, after which it may not know places that copies there name."""


_NAMES: Final = tuple(field.name for field in fields(MemberFacts))


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """Answer of a member to another one."""

    facts: MemberFacts
    """The facts about itself."""
    cuts: Mapping[str, Cut]
    """Values that it held at the newest heartbeat of the member that asks, by the name of the link."""
    copies_are_right: bool = False
    """True if no copy of its sessions is outdated that the member that asks has."""
    epoch_counter: int = 0
    """Time of its clock of epochs (`fanout.durable.ownership.epochs`); 0 if it has none."""


def encode_answer(answer: MemberAnswer) -> bytes:
    """Return the document for an answer."""
    cuts = {link: cut.document() for link, cut in answer.cuts.items()}
    about_asker = {"cuts": cuts, "copies_are_right": answer.copies_are_right, "epoch_counter": answer.epoch_counter}
    facts = {name: getattr(answer.facts, name) for name in _NAMES}
    return json.dumps({"protocol": PROTOCOL, **facts, **about_asker}).encode()


def decode_answer(document: bytes | bytearray) -> MemberAnswer:
    """Return the answer in a peer's document.

    Raises:
        ValueError: It is not such a document.
    """
    said = read_document(document, bytes_max=DOCUMENT_BYTES_MAX)
    if not isinstance(said, Mapping):
        raise ValueError("no JSON object")
    node, state = said.get("node"), said.get("state")
    if not isinstance(node, str) or not is_node_name(node):
        raise ValueError("no legal node")
    if not isinstance(state, str) or state not in STATES:
        raise ValueError("no legal state")
    cuts = said.get("cuts")
    if not isinstance(cuts, Mapping):
        raise ValueError("no legal cuts")
    facts = MemberFacts(
        node=node,
        instance=_token(said, "instance"),
        version=_text(said, "version"),
        config_digest=_token(said, "config_digest"),
        state=state,
        topics=_count(said, "topics"),
        sessions=_count(said, "sessions"),
        lag_s=_seconds(said, "lag_s"),
        moved_in=_count(said, "moved_in"),
        moved_out=_count(said, "moved_out"),
        client_address=_address(said, "client_address"),
        http_port=None if said.get("http_port") is None else _port(said, "http_port"),
        http_tls=said.get("http_tls") is True,
        keeps_copies=said.get("keeps_copies") is True,
        sessions_copied=None if said.get("sessions_copied") is None else _count(said, "sessions_copied"),
        copies_held=None if said.get("copies_held") is None else _count(said, "copies_held"),
        copies_late_s=_seconds(said, "copies_late_s"),
        history_s=_seconds(said, "history_s"),
        history_used=_seconds(said, "history_used"),
        interruptions=_count({"interruptions": 0, **said}, "interruptions"),
    )
    return MemberAnswer(
        facts,
        {link: cut_of_document(cut) for link, cut in cuts.items()},
        copies_are_right=said.get("copies_are_right") is True,
        epoch_counter=_count({"epoch_counter": 0, **said}, "epoch_counter"),
    )


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str):
        raise ValueError(f"no legal {key}")
    return clean_text(value)


def _address(said: Mapping[str, Any], key: str) -> str | None:
    value = said.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _ADDRESS_CHARACTERS_MAX or not is_server_reference(value):
        raise ValueError(f"no legal {key}")
    return value


def _token(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError(f"no legal {key}")
    return value


def _count(said: Mapping[str, Any], key: str) -> int:
    value = said.get(key)
    if type(value) is not int or not 0 <= value < _COUNT_MAX:
        raise ValueError(f"no legal {key}")
    return value


def _port(said: Mapping[str, Any], key: str) -> int:
    value = _count(said, key)
    if not 0 < value < 1 << 16:
        raise ValueError(f"no legal {key}")
    return value


def _seconds(said: Mapping[str, Any], key: str) -> float | None:
    value = said.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"no legal {key}")
    return float(value)
