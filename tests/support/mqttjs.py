"""MQTT.js, the client library of browsers and Node.js, as a process that a test drives.

`scripts/setup` installs what `tests/clients/package.json` names. Nothing here uses fanout's own codec.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["MqttJs"]

_CLIENTS = Path(__file__).parent.parent / "clients"
_DEADLINE_S = 30.0


class MqttJs:
    """One client; a context manager that ends it.

    Attributes:
        messages: What it received, in order, until now.
    """

    def __init__(self, url: str, **options: object) -> None:
        """Describe a client.

        Args:
            url: `mqtt://host:port`, `ws://host:port/path` and so on.
            options: Of MQTT.js, such as `protocolVersion`.
        """
        self.messages: list[dict[str, Any]] = []
        self._url = url
        self._options = options
        self._process: asyncio.subprocess.Process
        self._lines: asyncio.StreamReader
        self._events: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        program = shutil.which("node")
        assert program is not None, "Node.js is not installed; scripts/setup installs it"
        assert (_CLIENTS / "node_modules" / "mqtt").is_dir(), "MQTT.js is not installed; scripts/setup installs it"
        self._process = await asyncio.create_subprocess_exec(
            program,
            str(_CLIENTS / "mqttjs.js"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def connect(self) -> bool:
        """Connect, and return Session Present."""
        return bool((await self._do("connect", "connect", url=self._url, options=self._options))["sessionPresent"])

    async def subscribe(self, topic: str, **options: object) -> list[int]:
        """Subscribe and return what was granted."""
        granted: list[int] = (await self._do("subscribe", "subscribed", topic=topic, options=options))["granted"]
        return granted

    async def unsubscribe(self, topic: str) -> None:
        """Unsubscribe and wait for UNSUBACK."""
        await self._do("unsubscribe", "unsubscribed", topic=topic)

    async def publish(self, topic: str, payload: str, **options: object) -> None:
        """Publish and wait until the exchange of its QoS is complete."""
        await self._do("publish", "published", topic=topic, payload=payload, options=options)

    async def wait(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many messages have come, and return all."""
        while len(self.messages) < count:
            await self._read()
        return self.messages

    async def end(self) -> None:
        """Send DISCONNECT and close."""
        await self._do("end", "ended")

    async def _do(self, command: str, answer: str, **more: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **more}).encode() + b"\n")
        while True:
            await self._read()
            for event in self._events:
                if event["event"] == answer:
                    self._events.remove(event)
                    return event

    async def _read(self) -> None:
        async with asyncio.timeout(_DEADLINE_S):
            line = await self._lines.readline()
        assert line, "MQTT.js has ended"
        event = json.loads(line)
        assert event["event"] != "error", event["message"]
        (self.messages if event["event"] == "message" else self._events).append(event)
