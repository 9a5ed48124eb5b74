"""Checks of the primary's limits, as in CONNACK (MQTT 5, section 3.2.2.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fanout.probe.ground import Ground
from fanout.probe.results import Result, not_available, passed

__all__ = ["FLAGS", "LIMITS", "flag_check", "limit_check"]

LIMITS: Final = {
    "Receive Maximum": ("ReceiveMaximum", 65_535),
    "Maximum QoS": ("MaximumQoS", 2),
    "Maximum Packet Size": ("MaximumPacketSize", None),
    "Topic Alias Maximum": ("TopicAliasMaximum", 0),
    "Server Keep Alive": ("ServerKeepAlive", None),
}
"""Limits: name in paho-mqtt, and default without the property; None for no limit."""

FLAGS: Final = {
    "Retain Available": "RetainAvailable",
    "Wildcard Subscription": "WildcardSubscriptionAvailable",
    "Subscription Identifiers": "SubscriptionIdentifierAvailable",
    "Shared Subscription": "SharedSubscriptionAvailable",
}
"""Optional features: name in paho-mqtt; available unless CONNACK has 0."""


def limit_check(name: str) -> Callable[[Ground], Awaitable[Result]]:
    """Return the check that reads a limit."""
    field, default = LIMITS[name]

    async def check(ground: Ground) -> Result:
        value = ground.connack.get(field)
        if isinstance(value, int):
            return passed(f"{value:,}", value)
        return passed("no limit" if default is None else f"{default:,}, by default", default)

    return check


def flag_check(name: str) -> Callable[[Ground], Awaitable[Result]]:
    """Return the check that reads whether a feature is available."""
    field = FLAGS[name]

    async def check(ground: Ground) -> Result:
        value = ground.connack.get(field)
        if value == 0:
            return not_available("0")
        return passed("1" if value is not None else "1, by default")

    return check
