"""A member that lies: CLAIMs far ahead, wrong INHERITs, large and half-sent COPYs, many FETCHes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import httpx

from bench.attacks.ordinary import connect, metrics, observe, resident_mib
from bench.attacks.target import Target, Verdict
from fanout.durable.ownership.copy_messages import COPY_PATH, INHERIT_PATH
from fanout.durable.ownership.move_messages import CLAIM, FETCH
from fanout.pool.member_facts import ASKER_HEADER, PROTOCOL, PROTOCOL_HEADER

__all__ = ["NEEDS", "run"]

NEEDS = ("port", "http_port", "pool_port")
_FAR = 2**62 - 1
_HALF_SENT = 64
_BODY = 31 << 20
_FETCHES = 200
_ADMITTED_S = 2.5
_GROWTH_MIB = 160.0
"""Bodies under way of 96 MiB, and what the allocator keeps."""


async def run(target: Target) -> Verdict:
    """Lie about everything, and begin a durable session at the member afterwards: its pool must still answer."""
    headers = {PROTOCOL_HEADER: str(PROTOCOL), ASKER_HEADER: "liar", "Authorization": f"Bearer {target.pool_token}"}
    url = f"http://127.0.0.1:{target.pool_port}"
    before_mib = resident_mib(target)
    async with observe(target) as noticed, httpx.AsyncClient(headers=headers, timeout=10, trust_env=False) as http:
        for number, port in enumerate(target.peer_ports):  # sessions whose copies the target may hold
            code, _, writer = await connect(target, client_id=f"held-{number}", port=port, session_expiry_s=60)
            assert code == 0, f"a member refuses a durable session with 0x{code:02X}"
            writer.close()
        held = await _copies(target)
        far = [["claimed", _FAR, "liar", "", False, True, _FAR]]
        wrong = ["edge-1", "no process of it", [[f"held-{number}", _FAR, "edge-1", 9] for number in range(3)]]
        ghost = ["ghost", *wrong[1:]]
        many = [{}, [[f"held-{number}", _FAR, "liar"] for number in range(1_000)]]
        for path, question, times in (
            (CLAIM.path, far, 20),
            (INHERIT_PATH, wrong, 20),
            (INHERIT_PATH, ghost, 20),
            (FETCH.path, many, target.scaled(_FETCHES)),
        ):
            for _ in range(times):
                with contextlib.suppress(httpx.HTTPError):
                    await http.post(url + path, content=json.dumps(question).encode())
        with contextlib.suppress(httpx.HTTPError):
            await http.post(url + COPY_PATH, content=b"\0" * _BODY)
        await asyncio.gather(*(_half_send(target, headers) for _ in range(target.scaled(_HALF_SENT))))
        kept = await _copies(target)
        begun_s = time.perf_counter()
        code = -1
        with contextlib.suppress(OSError, TimeoutError):
            code, _, writer = await connect(target, client_id="durable", session_expiry_s=60, deadline_s=10)
            writer.close()
        admitted_s = time.perf_counter() - begun_s
    growth_mib = max(0.0, noticed.resident_mib_max - before_mib)
    return Verdict(
        held=code == 0 and admitted_s <= target.within(_ADMITTED_S) and kept >= held and growth_mib <= _GROWTH_MIB,
        promise=f"a durable session begins in {_ADMITTED_S:g} s, no copy is lost, {_GROWTH_MIB:g} MiB more are taken",
        figures={
            **noticed.figures,
            "admitted_s": round(admitted_s, 3),
            "growth_mib": round(growth_mib, 1),
            "copies_before": held,
            "copies_after": kept,
        },
    )


async def _copies(target: Target) -> float:
    """Return the copies that the target holds, once the figure stands still."""
    newest, until_s = -1.0, time.perf_counter() + 5
    assert target.http_port is not None
    while time.perf_counter() < until_s:
        figure = (await metrics(target.http_port))["fanout_pool_copies_held"]
        if figure == newest:
            break
        newest = figure
        await asyncio.sleep(0.3)
    return newest


async def _half_send(target: Target, headers: dict[str, str]) -> None:
    """Send a COPY but for its last byte, and hold it for a moment."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {COPY_PATH} HTTP/1.1\r\nHost: member\r\n{lines}Content-Length: {_BODY + 1}\r\n\r\n"
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            _, writer = await asyncio.open_connection("127.0.0.1", target.pool_port)
            try:
                writer.write(head.encode())
                for _ in range(_BODY >> 20):
                    writer.write(b"x" * (1 << 20))
                    await writer.drain()
                await asyncio.sleep(2)
            finally:
                writer.transport.abort()
