"""Test ground of one protocol version: clients, topics of their own, and the record of what must be cleaned up.

Owns the topics below a unique root, the Client Identifiers, and the retained messages and sessions left at the primary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import aiomqtt
from paho.mqtt.properties import Properties

from fanout.probe.client import ProbeClient, Target
from fanout.probe.retained_set import RetainedSet

__all__ = ["PATIENCE_S", "Ground"]

PATIENCE_S: Final = 2.0
"""Time after which an accepted message counts as not delivered."""
_LEFT_S: Final = 0.5
"""Time to wait for messages that should be gone."""
_CLEARINGS: Final = 3
"""Tries of clearing, because a primary may acknowledge a clear before it is done."""
_FAILURE: Final = 0x80


@dataclass(slots=True)
class Ground:
    """Common state of the checks of one version."""

    target: Target
    """The primary."""
    version: int
    """5, or 4 for MQTT 3.1.1."""
    root: str
    """Beginning of every topic of this version, without the last slash."""
    client_name: str
    """Beginning of every Client Identifier."""
    set_size: int
    """Messages of the large retained set."""
    read_filter: str | None
    """A Topic Filter whose retained set is only read; None for none."""
    connack: dict[str, object] = field(default_factory=dict)
    """Properties of the first CONNACK, by paho-mqtt's names."""
    expiring_since: float = 0.0
    """Time at which the expiring messages were published, monotonic seconds."""
    fence: str | None = None
    """Topic of the retained message that a link would use as its fence; None before it is known."""
    rounds: list[RetainedSet] = field(default_factory=list)
    """The reads of the large set at QoS 0."""
    _retained: dict[str, None] = field(default_factory=dict)
    _sessions: dict[str, None] = field(default_factory=dict)
    _count: int = 0

    def topic(self, *levels: str) -> str:
        """Return a topic, or a Topic Filter, below the root."""
        return "/".join((self.root, *levels))

    def client(self, *, bridge: bool = False) -> ProbeClient:
        """Return a client whose session ends with its connection."""
        self._count += 1
        return ProbeClient(
            self.target, version=self.version, client_id=f"{self.client_name}-{self._count}", bridge=bridge
        )

    def session_client(self, name: str, *, session_expiry_s: int) -> ProbeClient:
        """Return a client that keeps its session under a name."""
        client_id = f"{self.client_name}-{name}"
        self._sessions[client_id] = None
        return ProbeClient(
            self.target, version=self.version, client_id=client_id, clean=False, session_expiry_s=session_expiry_s
        )

    async def retain(
        self,
        client: ProbeClient,
        messages: Sequence[tuple[str, bytes]],
        *,
        message_properties: Properties | None = None,
    ) -> bool:
        """Publish retained messages at QoS 1, note them for clearing, and return whether all were accepted."""
        self._retained.update(dict.fromkeys(topic for topic, _ in messages))
        codes = await client.publish_all(messages, retain=True, message_properties=message_properties)
        return all(code < _FAILURE for code in codes)

    async def clear(self, client: ProbeClient, topics: Sequence[str]) -> None:
        """Clear retained messages."""
        await client.publish_all([(topic, b"") for topic in topics], retain=True)
        for topic in topics:
            self._retained.pop(topic, None)

    async def clean_up(self) -> str:
        """Clear every retained message and end every session; return a text of what is left, empty for nothing."""
        left = []
        try:
            await self._clear_retained()
        except aiomqtt.MqttError:
            left.append(f"retained messages below {self.root}/")
        try:
            await self._end_sessions()
        except aiomqtt.MqttError:
            left.append(f"the sessions {', '.join(self._sessions)}")
        return " and ".join(left)

    async def _clear_retained(self) -> None:
        if not self._retained:
            return
        left = tuple(self._retained)
        for _ in range(_CLEARINGS):
            async with self.client() as client:
                await self.clear(client, left)
            left = await self._still_retained()
            if not left:
                return
        raise aiomqtt.MqttError("retained messages are still there")

    async def _still_retained(self) -> tuple[str, ...]:
        """Return topics below the root that still have a retained message."""
        topics: set[str] = set()

        def found() -> bool:
            topics.update(one.topic for one in client.messages() if one.retain and one.topic.startswith(self.root))
            return False

        async with self.client() as client:
            await client.subscribe(self.topic("#"))
            await client.until(found, _LEFT_S)
        return tuple(topics)

    async def _end_sessions(self) -> None:
        for client_id in self._sessions:
            async with ProbeClient(self.target, version=self.version, client_id=client_id):
                pass

    def elapsed_s(self) -> float:
        """Return the age of the expiring messages, in seconds."""
        return time.monotonic() - self.expiring_since
