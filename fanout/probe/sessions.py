"""Checks of sessions: a client that returns finds its session, and the messages queued for it."""

from __future__ import annotations

from functools import partial
from typing import Final

from fanout.probe.client import ProbeClient
from fanout.probe.ground import PATIENCE_S, Ground
from fanout.probe.results import Result, failed, passed

__all__ = ["check_many_kept", "check_messages_kept", "check_session_present"]

_EXPIRY_S: Final = 300
_FEW: Final = 10
_MANY: Final = 2_000
"""Messages of the large check, or those of the large set if that is less."""


async def check_session_present(ground: Ground) -> Result:
    """Come back to a session with a subscription."""
    async with ground.session_client("resume", session_expiry_s=_EXPIRY_S) as client:
        if client.session_present:
            return failed("Session Present is 1 for a new session")
        await client.subscribe(ground.topic("kept", "#"), qos=1)
        granted = client.connack.get("SessionExpiryInterval", _EXPIRY_S)
    async with ground.session_client("resume", session_expiry_s=_EXPIRY_S) as client:
        present = client.session_present
    if not present:
        return failed("Session Present is 0: the session is not kept")
    note = f", for {granted} s at most" if granted < _EXPIRY_S else ""
    return passed(f"Session Present is 1{note}", granted)


async def check_messages_kept(ground: Ground) -> Result:
    """Publish a few QoS 1 messages while the client is away."""
    return await _publish_meanwhile(ground, _FEW)


async def check_many_kept(ground: Ground) -> Result:
    """Publish many QoS 1 messages while the client is away."""
    return await _publish_meanwhile(ground, min(_MANY, ground.set_size))


async def _publish_meanwhile(ground: Ground, count: int) -> Result:
    """Publish while the session has no connection, and check which messages come once it has one again."""
    topic = ground.topic("kept", "value")
    sent = [b"%d %d" % (count, index) for index in range(count)]
    async with ground.client() as publisher:
        await publisher.publish_all([(topic, payload) for payload in sent])
    found: list[bytes] = []
    async with ground.session_client("resume", session_expiry_s=_EXPIRY_S) as client:
        taken = -1
        while taken < len(client.arrivals) and len(found) < count:
            taken = len(client.arrivals)
            await client.until(partial(_has_more_than, client, taken), PATIENCE_S)
            found = [bytes(one.payload) for one in client.messages() if one.topic == topic]
    # Messages of an earlier check that were acknowledged too late come again, and do not count.
    known = set(sent)
    unique = [payload for payload in dict.fromkeys(found) if payload in known]
    if unique == sent:
        return passed(f"{count:,} of {count:,} came, in order")
    disorder = "" if unique == sorted(unique, key=sent.index) else ", out of order"
    return failed(f"{len(unique):,} of {count:,} came{disorder}")


def _has_more_than(client: ProbeClient, count: int) -> bool:
    return len(client.arrivals) > count
