"""Spoilt conversations with a listening node, while a client that behaves well is served by it.

Each conversation is a valid CONNECT and some packets, one or more of them spoilt, over TCP, WebSocket or behind a PROXY
header, which may be spoilt too; then the client ends its side. What must hold:

- The node closes its side of every conversation, after packets that a client may receive; `tests.oracle` reads them,
  and knows what the client sent before its first fault.
- The witness gets each of its messages, in order, throughout.
- Afterwards no session and no connection is left but the witness's.
- The node logs no traceback, and its memory does not grow from one half of the run to the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.mutation import connects, cuts, from_client, mutate, spoil
from tests.oracle.packets import Kind, Packet, Violation
from tests.oracle.streams import ServerStream
from tests.support.mosquitto import free_port
from tests.support.nodes import LiveNode
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

__all__ = ["Campaign", "Conversation", "fuzzed_node"]

CLIENTS = 50
"""Client Identifiers that conversations choose from, so that sessions are taken over and resumed."""
AT_A_TIME = 8
END_S = 20.0
"""How long the node may take to end a conversation that its client has ended; generous, for a busy machine."""
GROWTH_BYTES_MAX = 16 << 20
"""How much more memory the node may have after the second half of a run than after the first."""
SETTINGS = """session_expiry_max_s = 1
connect_timeout_s = 5.0
retained_topics_max = 2000
sys_interval_s = 0
packet_bytes_max = 65536
"""
_UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_PROXY_HEADERS = (
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 1883\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\2\1\xc0\0\2\2\x03\xe8\x07\x5b",
    b"PROXY UNKNOWN\r\n",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one client does."""

    listener: str
    """mqtt, ws or proxy."""
    version: int
    honest_start: bool
    """Whether what comes before the first spoilt byte is a whole CONNECT, so that the answer can be checked."""
    pieces: tuple[bytes, ...]
    """What it writes, piece by piece."""

    @classmethod
    def make(cls, rng: random.Random) -> Conversation:
        """Make one."""
        version = rng.choice((4, 5))
        connect = rng.choice(connects(version, client_id=f"fuzz-{rng.randrange(CLIENTS)}"))
        packets = from_client(version)
        honest_start = rng.random() < 0.8
        if not honest_start:
            connect = spoil(connect, rng, packets)
        stream = connect + (mutate(packets, rng, count_max=12) if honest_start or rng.random() < 0.5 else b"")
        listener = rng.choices(("mqtt", "ws", "proxy"), (6, 2, 2))[0]
        spoilt_start = rng.random() < 0.3
        if listener == "ws":
            upgrade = spoil(_UPGRADE, rng) if spoilt_start else _UPGRADE
            frames = b"".join(_frame(piece) for piece in cuts(stream, rng))
            stream = upgrade + (spoil(frames, rng) if rng.random() < 0.4 else frames)
        elif listener == "proxy":
            header = rng.choice(_PROXY_HEADERS)
            stream = (spoil(header, rng) if spoilt_start else header) + stream
        pieces = cuts(stream, rng) if rng.random() < 0.2 else [stream]
        return cls(listener, version, honest_start and listener == "mqtt", tuple(pieces))


@dataclass(slots=True)
class Campaign:
    """Many conversations with one node.

    Attributes:
        conversations: How many have ended.
        ends: What ended them, as far as the node said: the Reason Code of a DISCONNECT, or "closed".
        findings: What does not hold; empty for nothing.
        witnessed: Messages that the witness sent and received.
        resident_bytes: The node's memory after each part of the run.
    """

    node: LiveNode
    ports: dict[str, int]
    seed: int
    conversations: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    witnessed: int = 0
    resident_bytes: list[int] = field(default_factory=list)
    _log_position: int = 0

    async def run(self, count: int, *, parts: int = 2) -> None:
        """Have so many conversations, in parts after each of which memory and sessions are looked at.

        Before the first part a tenth as many warm the node up.
        """
        rng = random.Random(self.seed)
        async with asyncio.TaskGroup() as group:
            stop = asyncio.Event()
            witness = group.create_task(self._witness(stop))
            try:
                await self._converse(count // 10, rng)
                for _ in range(parts):
                    await self._converse(count // parts, rng)
                    await self._look()
            finally:
                stop.set()
                await witness
        growth = self.resident_bytes[-1] - self.resident_bytes[0]
        if growth > GROWTH_BYTES_MAX:
            self.findings.append(f"memory grew by {growth} bytes: {self.resident_bytes}")

    async def _converse(self, count: int, rng: random.Random) -> None:
        left = count

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self._have(Conversation.make(rng))
                self.conversations += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(work())

    async def _have(self, conversation: Conversation) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[conversation.listener])
        answer = b""
        try:
            async with asyncio.timeout(END_S):
                with contextlib.suppress(OSError):  # the node may close first
                    for piece in conversation.pieces:
                        if reader.at_eof():
                            break
                        writer.write(piece)
                        if len(conversation.pieces) > 1:
                            await asyncio.sleep(0)
                    if writer.can_write_eof():
                        writer.write_eof()
                    while data := await reader.read(1 << 16):
                        answer += data
        except TimeoutError:
            self.findings.append(f"no end: {conversation}")
        finally:
            writer.transport.abort()
        self._check_answer(conversation, answer)

    def _check_answer(self, conversation: Conversation, answer: bytes) -> None:
        if not conversation.honest_start:
            return
        stream = ServerStream(version=conversation.version)
        stream.note(b"".join(conversation.pieces))
        packets: list[Packet] = []
        try:
            packets = stream.feed(answer)
        except Violation as violation:
            self.findings.append(f"the node sent {answer!r} ({violation}) in {conversation}")
        last = packets[-1] if packets else None
        self.ends[f"0x{last.codes[0]:02X}" if last is not None and last.kind is Kind.DISCONNECT else "closed"] += 1

    async def _witness(self, stop: asyncio.Event) -> None:
        async with await RawClient.connect(self.node.port, "witness") as client:
            await client.subscribe(b"witness")
            while not stop.is_set():
                payload = b"%d" % self.witnessed
                client.publish(b"witness", payload)
                message = (await client.messages(1))[0]
                if message.payload != payload:
                    self.findings.append(f"the witness got {message.payload!r}, not {payload!r}")
                self.witnessed += 1
                await asyncio.sleep(0.005)

    async def _look(self) -> None:
        """Note memory, sessions and what was logged, once sessions have had their time to expire."""
        try:
            await wait_until(lambda: self._left() == (1, 1), 30.0)
        except TimeoutError:
            self.findings.append(f"connections and sessions that are left: {self._left()}")
        status = Path(f"/proc/{self.node.process.pid}/status").read_text() if self.node.process else ""
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        self.resident_bytes.append(int(line.split()[1]) * 1024)
        logged = self.node.log_text()
        new, self._log_position = logged[self._log_position :], len(logged)
        if "Traceback" in new or "[error" in new:
            start = max(new.find("Traceback"), new.find("[error"))
            self.findings.append(f"the log says {new[max(0, start - 300) : start + 2000]}")

    def _left(self) -> tuple[int, int]:
        server = self.node.document("/v1/status")["server"]
        return server["connections"], server["sessions"]


@contextlib.contextmanager
def fuzzed_node(directory: Path, *, seed: int) -> Iterator[Campaign]:
    """Give a campaign against a node that was started for it, and end the node."""
    ports = {"ws": free_port(), "proxy": free_port()}
    listeners = (
        f'[[server.listener]]\naddress = "ws://127.0.0.1:{ports["ws"]}"\n'
        f'[[server.listener]]\naddress = "mqtt://127.0.0.1:{ports["proxy"]}"\n'
        'proxy_protocol_from = ["127.0.0.1"]\n'
        '[access]\nanonymous = "always"\n'
    )
    node = LiveNode(directory, role="primary", name="fuzzed", settings=SETTINGS + listeners, log=False)
    with node:
        yield Campaign(node, {"mqtt": node.port, **ports}, seed)


def _frame(payload: bytes) -> bytes:
    """Make a binary frame as a client sends it; the mask is 0, which changes nothing."""
    assert len(payload) < 1 << 16
    head = bytes((0x82, 0x80 | len(payload))) if len(payload) < 126 else b"\x82\xfe" + struct.pack("!H", len(payload))
    return head + bytes(4) + payload
