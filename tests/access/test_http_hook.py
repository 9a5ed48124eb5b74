"""Tests of `fanout.access.http_hook` against a real HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import CapturingLogger

from fanout.access.http_hook import Answer, HttpHook, Question, _trusted_by_the_system
from fanout.config.access import HookConfig
from tests.access.pieces import ManualClock, as_logger, seen
from tests.access.service import Service, open_service
from tests.support.waiting import wait_until

CONNECT = Question("connect", "s1", "alice", "10.0.0.7")
PUBLISH = Question("publish", "s1", "alice", "10.0.0.7", "plant/a")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Return a service that allows everything."""
    async with open_service() as service:
        yield service


@contextlib.asynccontextmanager
async def open_hook(
    url: str,
    *,
    clock: ManualClock | None = None,
    logger: CapturingLogger | None = None,
    timeout_s: float = 30.0,
    requests_max: int = 4,
    queue_max: int = 100,
    remember_s: float = 30.0,
    remembered_max: int = 100,
) -> AsyncIterator[HttpHook]:
    """Give a hook that is closed afterwards."""
    config = HookConfig(
        url=url,
        timeout_s=timeout_s,
        requests_max=requests_max,
        queue_max=queue_max,
        remember_s=remember_s,
        remembered_max=remembered_max,
    )
    hook = HttpHook(config, monotonic=clock or ManualClock(), logger=as_logger(logger or CapturingLogger()))
    try:
        yield hook
    finally:
        await hook.close()


async def answer_of(hook: HttpHook, question: Question, password: bytes | None = None) -> Answer:
    """Ask and wait."""
    asked = hook.ask(question, password=password)
    return asked if isinstance(asked, Answer) else await asked


async def test_the_question_to_connect(service: Service) -> None:
    """It has the names, the address and the password; what is absent is null."""
    async with open_hook(service.url) as hook:
        assert await answer_of(hook, CONNECT, "pä55".encode()) == Answer(allow=True)
        await answer_of(hook, Question("connect", "s2", None, ""))
    assert service.asked == [
        {
            "action": "connect",
            "client_id": "s1",
            "username": "alice",
            "address": "10.0.0.7",
            "password": "pä55",
        },
        {"action": "connect", "client_id": "s2", "username": None, "address": "", "password": None},
    ]


async def test_the_question_about_a_topic(service: Service) -> None:
    """It has the topic, and no password."""
    async with open_hook(service.url) as hook:
        assert (await answer_of(hook, PUBLISH)).allow
    assert service.asked == [
        {"action": "publish", "client_id": "s1", "username": "alice", "address": "10.0.0.7", "topic": "plant/a"}
    ]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"allow": False}, Answer(allow=False)),
        ({"allow": True, "superuser": True}, Answer(allow=True, superuser=True)),
        ({"allow": False, "superuser": True}, Answer(allow=False)),
        ({"allow": True, "user": "alice@plant", "ttl": 5}, Answer(allow=True, user="alice@plant")),
        ({"allow": True, "user": None}, Answer(allow=True)),
    ],
)
async def test_what_an_answer_means(service: Service, said: object, answer: Answer) -> None:
    """Keys that the hook does not know are ignored, and a superuser must be allowed in the first place."""
    service.answer = said
    async with open_hook(service.url) as hook:
        assert await answer_of(hook, CONNECT) == answer


async def test_only_a_connect_makes_a_superuser(service: Service) -> None:
    """An answer about a topic is about this topic."""
    service.answer = {"allow": True, "superuser": True, "user": 5}
    async with open_hook(service.url) as hook:
        assert await answer_of(hook, PUBLISH) == Answer(allow=True)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"allow",
        b"[" * 20_000,
        b"x" * 100_000,
        b"\xff",
        [],
        True,
        {},
        {"allow": 1},
        {"allow": "true"},
        {"allow": None},
        {"allow": True, "superuser": 1},
        {"allow": True, "user": ""},
        {"allow": True, "user": 5},
        {"allow": True, "user": "a\0"},
        {"allow": True, "user": "\ud800"},
        {"allow": True, "user": "x" * 70_000},
        {"allow": True, "user": "x" * 65_536},
    ],
)
async def test_what_is_not_an_answer_is_a_refusal(service: Service, said: object) -> None:
    """Never taken for consent, counted, and not remembered."""
    service.answer = said
    async with open_hook(service.url) as hook:
        assert await answer_of(hook, CONNECT) == Answer(allow=False, failure="answer")
        assert hook.failures_total["answer"] == 1
        service.answer = {"allow": True}
        assert await answer_of(hook, CONNECT) == Answer(allow=True)


async def test_what_is_compressed_is_not_an_answer(service: Service) -> None:
    """It was not asked for, and a little could become a lot."""
    service.answer, service.headers = gzip.compress(b'{"allow": true}'), {"Content-Encoding": "gzip"}
    async with open_hook(service.url) as hook:
        assert await answer_of(hook, CONNECT) == Answer(allow=False, failure="answer")


@pytest.mark.parametrize("status", [201, 204, 301, 401, 404, 500, 503])
async def test_another_status_is_a_refusal(service: Service, status: int) -> None:
    """Whatever the document says; redirections are not followed."""
    service.status = status
    service.answer = b"" if status == 204 else {"allow": True}
    async with open_hook(service.url) as hook:
        assert await answer_of(hook, CONNECT) == Answer(allow=False, failure="status")
        assert hook.failures_total == {"busy": 0, "timeout": 0, "unreachable": 0, "status": 1, "answer": 0}


async def test_nobody_there_is_a_refusal() -> None:
    """A connection that is refused."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with open_hook(f"http://127.0.0.1:{closed.getsockname()[1]}/") as hook:
            assert await answer_of(hook, CONNECT) == Answer(allow=False, failure="unreachable")


async def test_no_answer_in_time_is_a_refusal(service: Service) -> None:
    """Also for those that wait for a free request: nobody waits longer than timeout_s."""
    service.open.clear()
    async with open_hook(service.url, timeout_s=0.1, requests_max=1) as hook:
        questions = [Question("connect", f"s{number}", None, "") for number in range(3)]
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(answer_of(hook, question) for question in questions))
        assert set(answers) == {Answer(allow=False, failure="timeout")}
        assert hook.failures_total["timeout"] == 3
        service.open.set()
        hook.config = replace(hook.config, timeout_s=30.0)
        assert await answer_of(hook, CONNECT) == Answer(allow=True)


async def test_answers_are_remembered_for_their_time(service: Service) -> None:
    """Consent and refusal alike; another password, address or topic is another question."""
    clock = ManualClock()
    async with open_hook(service.url, clock=clock) as hook:
        for _ in range(3):
            assert (await answer_of(hook, CONNECT, b"a")).allow
        service.answer = {"allow": False}
        for _ in range(2):
            assert not (await answer_of(hook, CONNECT, b"b")).allow
            assert not (await answer_of(hook, CONNECT)).allow
            assert not (await answer_of(hook, CONNECT._replace(address="10.0.0.8"), b"a")).allow
            assert not (await answer_of(hook, PUBLISH)).allow
            assert not (await answer_of(hook, PUBLISH._replace(topic="plant/b"))).allow
        assert (len(service.asked), hook.asked_total, hook.remembered_total) == (6, 6, 7)
        assert isinstance(hook.ask(CONNECT, password=b"a"), Answer)
        clock.now_s += 30
        assert not (await answer_of(hook, CONNECT, b"a")).allow


async def test_remembered_answers_are_bounded(service: Service) -> None:
    """The oldest goes; long names or a long topic, which clients could fill the memory with, are not kept at all."""
    async with open_hook(service.url, remembered_max=2) as hook:
        for number in range(5):
            await answer_of(hook, PUBLISH._replace(topic=f"t/{number}"))
        assert len(hook._answers) == 2
        long = "x" * 3000
        for question in (
            PUBLISH._replace(topic=long),
            PUBLISH._replace(client_id=long),
            PUBLISH._replace(username=long),
        ):
            for _ in range(2):
                await answer_of(hook, question)
        assert hook.asked_total == 11


async def test_the_password_is_not_remembered(service: Service) -> None:
    """Only a keyed hash of it."""
    async with open_hook(service.url) as hook:
        await answer_of(hook, CONNECT, b"secret")
        assert "secret" not in repr(hook._answers._entries)


async def test_requests_at_a_time_are_bounded(service: Service) -> None:
    """The others wait for their turn."""
    service.open.clear()
    async with open_hook(service.url, requests_max=3) as hook:
        asked = [hook.ask(Question("connect", f"s{number}", None, "")) for number in range(10)]
        await wait_until(lambda: len(service.asked) == 3)
        assert hook.unfinished == 10
        service.open.set()
        assert all([(await each).allow for each in asked if isinstance(each, asyncio.Task)])
        assert (len(service.asked), service.at_a_time, hook.unfinished) == (10, 3, 0)


async def test_too_many_questions_are_refused_at_once(service: Service) -> None:
    """The queue is bounded too."""
    service.open.clear()
    async with open_hook(service.url, requests_max=1, queue_max=2) as hook:
        for number in range(3):
            hook.ask(Question("connect", f"s{number}", None, ""))
        assert hook.ask(CONNECT) == Answer(allow=False, failure="busy")
        service.open.set()
        await wait_until(lambda: hook.unfinished == 0)
        assert await answer_of(hook, CONNECT) == Answer(allow=True)


async def test_the_same_question_is_asked_once_at_a_time(service: Service) -> None:
    """All who ask get the one answer, also when one of them stops waiting."""
    service.open.clear()
    async with open_hook(service.url) as hook:
        first = hook.ask(CONNECT)
        assert isinstance(first, asyncio.Task)
        assert all(hook.ask(CONNECT) is first for _ in range(5))

        async def wait() -> None:
            await asyncio.wait([first])

        waiter = asyncio.create_task(wait())
        await wait_until(lambda: len(service.asked) == 1)
        waiter.cancel()
        service.open.set()
        assert (await first).allow
        assert len(service.asked) == 1


async def test_a_connection_that_the_service_closed_is_no_failure() -> None:
    """Services drop idle connections; the question is asked again on a new one."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:  # as if it had been closed just when the question was on its way
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return
        await reader.readuntil(b"}")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{"allow": true}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_hook(f"http://127.0.0.1:{port}/") as hook:
            assert await answer_of(hook, CONNECT) == Answer(allow=True)
            assert connections == 2


async def test_failures_are_logged_once_and_then_now_and_then(service: Service) -> None:
    """A service that is down does not fill the log; when it is back, the count is told. No secret is."""
    clock, logger = ManualClock(), CapturingLogger()
    service.status = 500
    async with open_hook(f"{service.url}?key=hush", clock=clock, logger=logger) as hook:
        for _ in range(5):
            await answer_of(hook, CONNECT, b"secret")
        clock.now_s += 10
        for _ in range(2):
            await answer_of(hook, CONNECT, b"secret")
        service.status = 200
        for _ in range(2):
            await answer_of(hook, CONNECT, b"secret")
    assert seen(logger) == [
        ("warning", "access_hook_fails", {"reason": "status", "failures": 1, "url": service.url}),
        ("warning", "access_hook_fails", {"reason": "status", "failures": 6, "url": service.url}),
        ("info", "access_hook_works_again", {"failures": 7, "url": service.url}),
    ]


async def test_closing_drops_questions_or_lets_them_finish(service: Service) -> None:
    """At the end of the node they are dropped; when the hook is replaced they are answered."""
    service.open.clear()
    async with open_hook(service.url) as hook:
        dropped = hook.ask(CONNECT)
        assert isinstance(dropped, asyncio.Task)
        await wait_until(lambda: len(service.asked) == 1)
    assert dropped.cancelled()
    assert hook.ask(CONNECT) == Answer(allow=False, failure="unreachable")
    async with open_hook(service.url) as hook:
        finished = hook.ask(CONNECT)
        assert isinstance(finished, asyncio.Task)
        await wait_until(lambda: len(service.asked) == 2)
        closing = asyncio.create_task(hook.close(finish=True))
        await asyncio.sleep(0)
        service.open.set()
        await closing
        assert finished.result() == Answer(allow=True)


async def test_proxies_of_the_environment_are_not_used(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords go to the service and nowhere else."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with open_hook(service.url) as hook:
        assert (await answer_of(hook, CONNECT)).allow


async def test_the_system_decides_which_certificates_are_trusted() -> None:
    """A service over TLS that nobody vouches for does not get the question."""
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_hook(f"https://127.0.0.1:{port}/") as hook, open_hook(f"https://127.0.0.1:{port}/") as other:
            assert await answer_of(hook, CONNECT, b"secret") == Answer(allow=False, failure="unreachable")
            assert _trusted_by_the_system.cache_info().currsize == 1
            assert _trusted_by_the_system().verify_mode is ssl.CERT_REQUIRED
            assert other.failures_total["unreachable"] == 0
