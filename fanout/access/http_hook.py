"""HTTP hook: a service of the operator that decides whether a client may do something.

Owns the form of questions and answers, the limit of concurrent requests, the memory of answers, and failures: each is a
refusal, a count, and a log line that does not repeat.

A question is a POST with a JSON object: `action` ("connect", "subscribe", "publish"), `client_id`, `username` (null for
none), `address` (IP address, empty for a Unix socket), for "connect" `password` (null for none), otherwise `topic` (a
Topic Name, or a Topic Filter without `$share/{group}/`). The answer is 200 with a JSON object: `allow` (true or false),
and for "connect" where wanted `superuser` (true or false) and `user` (the user that the client is taken for). Other
keys are ignored; every other answer is a failure.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from fanout.access.memory import TimedMemory
from fanout.config.access import HookAction, HookConfig
from fanout.mqtt.data_representation import MAX_STRING_BYTES
from fanout.peer_text import read_document

if TYPE_CHECKING:
    import httpx
    from structlog.typing import FilteringBoundLogger

__all__ = ["FAILURES", "Answer", "HttpHook", "Question"]

FAILURES: Final = ("busy", "timeout", "unreachable", "status", "answer")
"""Reasons of a question without an answer: too many wait, too late, no connection, not 200, not an answer."""
_ANSWER_BYTES_MAX: Final = 64 * 1024
_REMEMBERED_CHARACTERS_MAX: Final = 2048
"""Longest names and topic of a question whose answer is remembered: who connects chooses them, admitted or not."""
_LOG_INTERVAL_S: Final = 10.0


class Question(NamedTuple):
    """One question to the service."""

    action: HookAction
    client_id: str
    username: str | None
    address: str
    topic: str = ""
    """Topic; empty for "connect"."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the service; a refusal when it gives none."""

    allow: bool
    superuser: bool = False
    user: str | None = None
    """User that the client is taken for; None for its User Name."""
    failure: str = ""
    """One of `FAILURES`, or empty."""


class _NoAnswer(Exception):
    """The service gave no answer; the text is one of `FAILURES`."""


class HttpHook:
    """Asks one service."""

    def __init__(self, config: HookConfig, *, monotonic: Callable[[], float], logger: FilteringBoundLogger) -> None:
        """Prepare; the first question opens the first connection.

        Args:
            config: Address and limits.
            monotonic: Tells seconds of a clock that never goes back.
            logger: Takes log lines.
        """
        self.config = config
        """Address and limits."""
        self.asked_total = 0
        """Questions that were sent."""
        self.remembered_total = 0
        """Questions that a remembered or a pending answer saved."""
        self.failures_total = dict.fromkeys(FAILURES, 0)
        """Questions without an answer, by reason."""
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        self._answers: TimedMemory[tuple[Question, bytes], Answer] = TimedMemory(
            seconds=config.remember_s, entries_max=config.remembered_max
        )
        self._unfinished: dict[tuple[Question, bytes], asyncio.Task[Answer]] = {}
        self._free = asyncio.Semaphore(config.requests_max)
        self._failures = _FailureLog(config.url, monotonic=monotonic, logger=logger)
        self._client = _make_client(config)

    @property
    def unfinished(self) -> int:
        """Number of questions that are asked or wait."""
        return len(self._unfinished)

    def ask(self, question: Question, *, password: bytes | None = None) -> Answer | asyncio.Task[Answer]:
        """Ask a question, unless its answer is remembered.

        Args:
            question: The question.
            password: For "connect", the password of the client: UTF-8.

        Returns:
            The answer, or a task of it, which never fails. Waiters must not cancel the task, because others may share
            it: use `asyncio.wait` or a callback.
        """
        key = (question, self._digest(password))
        answer = self._answers.get(key, now_s=self._monotonic())
        if answer is not None:
            self.remembered_total += 1
            return answer
        task = self._unfinished.get(key)
        if task is not None:
            self.remembered_total += 1
            return task
        if self._client.is_closed:
            return self._failed("unreachable")
        if len(self._unfinished) >= self.config.requests_max + self.config.queue_max:
            return self._failed("busy")
        task = asyncio.create_task(self._answer(question, key, password), name=f"access-hook-{question.action}")
        self._unfinished[key] = task
        task.add_done_callback(lambda _: self._unfinished.pop(key, None))
        return task

    async def close(self, *, finish: bool = False) -> None:
        """Close all connections.

        Args:
            finish: Wait for the answers of open questions first, at most `timeout_s`; otherwise they are dropped.
        """
        tasks = list(self._unfinished.values())
        if not finish:
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._client.aclose()

    async def _answer(self, question: Question, key: tuple[Question, bytes], password: bytes | None) -> Answer:
        content = _content(question, password)
        try:
            async with asyncio.timeout(self.config.timeout_s), self._free:
                self.asked_total += 1
                answer = _read_answer(await self._post(content), question)
        except TimeoutError:
            return self._failed("timeout")
        except _NoAnswer as error:
            return self._failed(str(error))
        self._failures.end()
        if len(question.client_id) + len(question.username or "") + len(question.topic) <= _REMEMBERED_CHARACTERS_MAX:
            self._answers.put(key, answer, now_s=self._monotonic())
        return answer

    async def _post(self, content: bytes) -> bytes:
        """Send a question and return the document that answers it.

        The service may just have closed a kept connection. The question changes nothing there, so it is asked once
        more.
        """
        import httpx

        from fanout.runtime.http_client import NO_ANSWER

        try:
            try:
                return await self._post_once(content)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                return await self._post_once(content)
        except NO_ANSWER as error:
            raise _NoAnswer("unreachable") from error

    async def _post_once(self, content: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        async with self._client.stream("POST", self.config.url, content=content, headers=headers) as response:
            if response.status_code != HTTPStatus.OK:
                raise _NoAnswer("status")
            document = b""
            async for piece in response.aiter_raw():  # decompressed bytes have no bound
                document += piece
                if len(document) > _ANSWER_BYTES_MAX:
                    raise _NoAnswer("answer")
            return document

    def _failed(self, failure: str) -> Answer:
        self.failures_total[failure] += 1
        self._failures.note(failure)
        return Answer(allow=False, failure=failure)

    def _digest(self, password: bytes | None) -> bytes:
        """Return the digest that stands for a password in memory."""
        if password is None:
            return b""
        return hashlib.blake2b(password, key=self._key, digest_size=32).digest()


class _FailureLog:
    """Logs that the service fails: at the first failure, then every few seconds, and when it works again."""

    def __init__(self, url: str, *, monotonic: Callable[[], float], logger: FilteringBoundLogger) -> None:
        self._url = url.partition("?")[0]  # the query may be a secret
        self._monotonic = monotonic
        self._logger = logger
        self._count = 0  # since the last success
        self._next_line_s = 0.0

    def note(self, failure: str) -> None:
        """Note a failure."""
        self._count += 1
        now_s = self._monotonic()
        if self._count == 1 or now_s >= self._next_line_s:
            self._next_line_s = now_s + _LOG_INTERVAL_S
            self._logger.warning("access_hook_fails", reason=failure, failures=self._count, url=self._url)

    def end(self) -> None:
        """Note a success."""
        if self._count:
            self._logger.info("access_hook_works_again", failures=self._count, url=self._url)
            self._count = 0


def _make_client(config: HookConfig) -> httpx.AsyncClient:
    import httpx  # a node without a hook starts without it, 0.1 s sooner

    return httpx.AsyncClient(
        timeout=None,  # a question has one time limit, from the moment it is asked
        limits=httpx.Limits(max_connections=config.requests_max, max_keepalive_connections=config.requests_max),
        trust_env=False,  # a proxy of the environment has no business with passwords
        verify=_trusted_by_the_system() if config.url.startswith("https:") else False,
    )


@functools.cache
def _trusted_by_the_system() -> ssl.SSLContext:
    """Return the certificates that the system trusts; loading them takes a fifth of a second, so it is done once."""
    return ssl.create_default_context()


def _content(question: Question, password: bytes | None) -> bytes:
    document: dict[str, str | None] = {
        "action": question.action,
        "client_id": question.client_id,
        "username": question.username,
        "address": question.address,
    }
    if question.action == "connect":
        document["password"] = None if password is None else password.decode()
    else:
        document["topic"] = question.topic
    return json.dumps(document, ensure_ascii=False).encode()


def _read_answer(document: bytes, question: Question) -> Answer:
    try:
        said = read_document(document, bytes_max=_ANSWER_BYTES_MAX)
    except ValueError as error:
        raise _NoAnswer("answer") from error
    if not isinstance(said, Mapping) or not isinstance(said.get("allow"), bool):
        raise _NoAnswer("answer")
    if question.action != "connect":
        return Answer(allow=said["allow"])
    superuser, user = said.get("superuser", False), said.get("user")
    if not isinstance(superuser, bool) or not (user is None or _is_user(user)):
        raise _NoAnswer("answer")
    return Answer(allow=said["allow"], superuser=said["allow"] and superuser, user=user)


def _is_user(user: object) -> bool:
    if not isinstance(user, str) or not user or "\0" in user:
        return False
    try:
        return len(user.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        return False
