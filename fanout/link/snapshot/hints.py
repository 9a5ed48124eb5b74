"""Advice to an operator about a retained set that is not proved, by the kind of the primary."""

from __future__ import annotations

from typing import Final

__all__ = ["ALTERED_HINT", "CHURN_HINT", "LIMIT_HINT", "LOSS_HINT", "shortfall_hint"]

LIMIT_HINT: Final = (
    "The primary may have a limit for one SUBSCRIBE, as ejabberd has (match_retained_limit of mod_mqtt, 1000 by"
    " default): raise it, or use narrower selectors"
)
"""For topics that come for a narrower Topic Filter, or by name, but not with the set."""
LOSS_HINT: Final = (
    "Raise the primary's queue limit for absent sessions: max_queued_messages of Mosquitto,"
    " mqtt.max_mqueue_len of EMQX, server.queue_messages_max and queue_bytes_max of a fanout node"
)
"""For messages that the primary had promised to the session, and dropped."""
CHURN_HINT: Final = (
    "Exclude the branch in which topics are created all the time, and give it a selector of its own with live_only ="
    " true; or lower snapshot_quiet_s, if the primary never pauses that long; or raise it, if the set itself comes"
    " slowly"
)
"""For new topics that hide the end of a set at a primary that does not answer in order."""
ALTERED_HINT: Final = "Something changes messages on the way from the primary, perhaps a proxy"
"""For messages that differ from those that a fanout node says it sent."""


def shortfall_hint(*, is_node: bool, is_mosquitto: bool, is_empty: bool) -> str:
    """Return the advice about a set that ended before its evidence came.

    Args:
        is_node: True if the primary is a fanout node, which waits for a slow reader and drops nothing.
        is_mosquitto: True if it is a Mosquitto.
        is_empty: True if no topic came, as for a user without rights.
    """
    if is_empty:
        rights = "Compare the primary's access rules with those that fanout check --acl prints. "
        return rights + shortfall_hint(is_node=is_node, is_mosquitto=is_mosquitto, is_empty=False)
    if is_node:
        return "On a slow line use narrower selectors, or raise snapshot_quiet_s; else look at the primary's log"
    if is_mosquitto:
        return (
            "On a slow line use narrower selectors; else raise max_queued_messages of Mosquitto, which drops"
            " messages queued for a slow reader"
        )
    return (
        "On a slow line use narrower selectors; else raise the primary's queue limit for one client,"
        " mqtt.max_mqueue_len at EMQX"
    )
