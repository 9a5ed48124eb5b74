"""An ordinary client beside an attack: how long its pings wait, and the memory of the node."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.attacks.target import Target
from fanout.mqtt.packets import Connect, encode
from fanout.mqtt.properties import Properties

__all__ = ["Noticed", "answers_s", "connect", "metrics", "observe", "open_http", "open_stream", "resident_mib"]

_PINGREQ, _PINGRESP = b"\xc0\x00", b"\xd0\x00"
_PAUSE_S = 0.01
_LAST_PING_S = 30.0


@dataclass(slots=True)
class Noticed:
    """Times that the ordinary client measured."""

    pings_s: list[float] = field(default_factory=list)
    """Time of each ping until its answer."""
    resident_mib_max: float = 0.0
    """Most resident memory of the node; 0 when it is not known."""

    def percentile(self, share: float) -> float:
        """Return a percentile of the pings in seconds, `share` of 1; infinity without a ping."""
        ordered = sorted(self.pings_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("inf")

    @property
    def figures(self) -> dict[str, float]:
        """The figures of a verdict."""
        return {
            "ping_s_p99": round(self.percentile(0.99), 4),
            "ping_s_max": round(max(self.pings_s, default=float("inf")), 4),
            "resident_mib_max": round(self.resident_mib_max, 1),
        }


def resident_mib(target: Target) -> float:
    """Return the resident memory of the target's process in MiB; 0 when it is not known."""
    if target.pid is None:
        return 0.0
    try:
        status = Path(f"/proc/{target.pid}/status").read_text()
    except OSError:
        return 0.0
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


async def open_stream(
    target: Target,
    port: int | None,
    *,
    address: str | None,
    tls: ssl.SSLContext | None = None,
    tls_name: str | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of the target when the attack may; a connection from another address counts as its action.

    Args:
        target: The target.
        port: The port.
        address: Address to come from; None for 127.0.0.1, which is no attacker's.
        tls: Context for TLS; None without TLS.
        tls_name: Name in the certificate; None if it is not looked at.
    """
    if address is None:
        return await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=tls_name)
    await target.effort.turn()
    target.effort.done["attempts"] += 1
    opened = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(address, 0), ssl=tls, server_hostname=tls_name
    )
    target.effort.done["connections"] += 1
    return opened


async def connect(
    target: Target,
    *,
    client_id: str,
    user: str | None = None,
    password: str | None = None,
    address: str | None = None,
    port: int | None = None,
    version: int = 5,
    session_expiry_s: int | None = None,
    deadline_s: float = 30.0,
) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the target and send CONNECT.

    Args:
        target: The target.
        client_id: Client Identifier.
        user: A user of the target; None for none.
        password: Its password; None for that of `target.users`.
        address: Address to come from; None for 127.0.0.1.
        port: Port of the listener; None for that of the target.
        version: 4 or 5.
        session_expiry_s: Session Expiry Interval; None for a session that ends with its connection.
        deadline_s: Time for all of it.

    Returns:
        The Reason Code of CONNACK, and the connection.

    Raises:
        OSError: Refused, or closed without an answer.
        TimeoutError: No answer in time.
    """
    if password is None and user is not None:
        password = target.users[user]
    packet = Connect(
        client_id=client_id,
        clean_start=True,
        keep_alive=0,
        properties=Properties(session_expiry_interval=session_expiry_s),
        username=user,
        password=None if password is None else password.encode(),
        version=version,
    )
    async with asyncio.timeout(deadline_s):
        reader, writer = await open_stream(target, port or target.port, address=address)
        writer.write(encode(packet, version=version))
        try:
            first = await reader.readexactly(2)
            body = await reader.readexactly(first[1])
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise ConnectionResetError("closed without an answer") from error
    return body[1], reader, writer


async def open_http(target: Target, *, address: str | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the HTTP interface of the target, over TLS if it has a CA; from 127.0.0.1 if no address is given."""
    tls = None if target.ca_file is None else _context(target.ca_file)
    name = None if tls is None else "localhost"
    return await open_stream(target, target.http_port, address=address, tls=tls, tls_name=name)


@functools.cache
def _context(ca_file: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = False  # the node is asked by its address on loopback
    return context


async def answers_s(target: Target, path: str = "/livez", *, status: bytes = b" 200 ") -> float:
    """Return how long the HTTP interface takes to answer; infinity without that answer."""
    begun_s = time.perf_counter()
    try:
        async with asyncio.timeout(30):
            reader, writer = await open_http(target)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.readuntil(b"\r\n")
            writer.close()
    except (OSError, EOFError, TimeoutError):
        return float("inf")
    return time.perf_counter() - begun_s if status in answer else float("inf")


async def metrics(port: int) -> Mapping[str, float]:
    """Return the metrics of the node with an HTTP port, those of one name added up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    found: Counter[str] = Counter()
    for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("fanout_")):
        found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]  # gauges may have fractions
    return found


@contextlib.asynccontextmanager
async def observe(target: Target, *, user: str | None = "ordinary") -> AsyncIterator[Noticed]:
    """Ping the target as an ordinary client, one ping after the other, until the block ends."""
    noticed = Noticed(resident_mib_max=resident_mib(target))
    if not target.is_observed:
        yield noticed
        return
    name = user if user in target.users else None
    code, reader, writer = await connect(target, client_id=f"ordinary-{secrets.token_hex(4)}", user=name)
    assert code == 0, f"the ordinary client is refused with 0x{code:02X}"

    stopping = False

    async def ping() -> None:
        while not stopping:  # the ping under way counts
            begun_s = time.perf_counter()
            writer.write(_PINGREQ)
            answer = await reader.readexactly(2)
            assert answer == _PINGRESP
            noticed.pings_s.append(time.perf_counter() - begun_s)
            noticed.resident_mib_max = max(noticed.resident_mib_max, resident_mib(target))
            await asyncio.sleep(_PAUSE_S)

    task = asyncio.create_task(ping(), name="ordinary-client")
    try:
        yield noticed
    finally:
        stopping = True
        try:
            await asyncio.wait_for(task, _LAST_PING_S)
        except (OSError, EOFError, TimeoutError):  # thrown out, or held up
            noticed.pings_s.append(float("inf"))
        writer.close()
