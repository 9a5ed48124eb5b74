"""Stored form of a session at the primary, so that a later process of the link resumes it.

Also decides which part of a stored session is valid under another configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

from fanout.config import LinkConfig
from fanout.link.model.evidence import Evidence, Order
from fanout.link.model.resumption import Resumption, StoredSession
from fanout.selection import Selector

__all__ = ["encode_session", "find_resumption"]

_FORMAT = 1


def encode_session(session: StoredSession, config: LinkConfig, *, node_id: str, seen_ns: int) -> bytes:
    """Return a session as bytes.

    Args:
        session: The session.
        config: The configuration of the link.
        node_id: This node.
        seen_ns: Present time, at which the session is known to exist, in nanoseconds.
    """
    document = {
        "format": _FORMAT,
        "owner": _owner(config, node_id),
        "primaries": sorted(map(str, config.primaries)),
        "selectors": [_described(selector) for selector in config.selectors],
        "epoch": session.epoch,
        "evidence": session.evidence,
        "fence": None if session.sentinel is None else session.sentinel.decode(),
        "order": session.order.value,
        "why_unordered": session.why_unordered,
        "control_permitted": session.control_permitted,
        "session_expiry_s": session.session_expiry_s,
        "unreleased": sorted(session.unreleased),
        "unfinished": sorted(session.unfinished),
        "surplus": sorted(session.stale_filters),
        "is_mosquitto": session.is_mosquitto,
        "at_qos_0": sorted(session.at_qos_0),
        "seen_ns": seen_ns,
    }
    return json.dumps(document).encode()


def find_resumption(data: bytes | None, config: LinkConfig, *, node_id: str) -> Resumption | None:
    """Return the part of a stored session that can be resumed; None for none, and then its values are of no use either.

    Args:
        data: Bytes from `encode_session`; None or empty when there was no session.
        config: The present configuration.
        node_id: This node.
    """
    if not data or config.version != 5 or not config.session_expiry_s:
        return None
    try:
        document: dict[str, Any] = json.loads(data)
        return _find(document, config, node_id=node_id)
    except (ValueError, KeyError, TypeError):  # written by another version, or damaged
        return None


def _find(document: dict[str, Any], config: LinkConfig, *, node_id: str) -> Resumption | None:
    if document["format"] != _FORMAT or document["owner"] != _owner(config, node_id):
        return None
    if set(document["primaries"]).isdisjoint(map(str, config.primaries)):
        return None
    kept = {
        json.dumps(one): evidence for one, evidence in zip(document["selectors"], document["evidence"], strict=True)
    }
    found = {selector: json.dumps(_described(selector)) for selector in config.selectors}
    filters = {str(one["filter"]) for one in document["selectors"]} | set(document["surplus"])
    # The capability check asks about wildcards where the link has any: with the first one it is made again.
    asked = any(
        "live_only" not in one or not one["live_only"] for one in document["selectors"] if _is_wild(one["filter"])
    )
    asks = any(_is_wild(one.filter) and not one.live_only for one in config.selectors if found[one] not in kept)
    sentinel = None if asks and not asked else document["fence"]
    session = StoredSession(
        epoch=document["epoch"],
        evidence=tuple(_evidence(kept.get(found[selector])) for selector in config.selectors),
        sentinel=None if sentinel is None else sentinel.encode(),
        order=Order(document["order"]),
        why_unordered=document["why_unordered"],
        control_permitted=document["control_permitted"],
        session_expiry_s=document["session_expiry_s"],
        unreleased=frozenset(document["unreleased"]),
        unfinished=frozenset(document["unfinished"]),
        stale_filters=frozenset(filters - {selector.filter for selector in config.selectors}),
        is_mosquitto=document.get("is_mosquitto", False),  # absent in earlier versions, as the next
        at_qos_0=frozenset(document.get("at_qos_0", ())),
    )
    selectors = tuple(selector for selector in config.selectors if found[selector] in kept)
    return Resumption(session, selectors, document["seen_ns"])


def _is_wild(topic_filter: str) -> bool:
    return "#" in topic_filter or "+" in topic_filter


def _owner(config: LinkConfig, node_id: str) -> list[str]:
    """Return what identifies a session, and its subscriptions besides the selectors, as this link's."""
    return [config.client_id_of(node_id), config.control_topic, node_id, config.name]


def _described(selector: Selector) -> dict[str, Any]:
    fields = {field.name: getattr(selector, field.name) for field in dataclasses.fields(selector) if field.init}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _evidence(name: str | None) -> Evidence | None:
    with contextlib.suppress(ValueError):  # another version may know other kinds
        return None if name is None else Evidence(name)
    return None
