"""HTTP client of a running node, for commands.

Owns the address of a node, time limits, and the translation of failures into a `NodeUnreachable` with advice.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from fanout.api.browse.models import EventsDocument, TopicDetail, TopicsDocument, TopTopics
from fanout.api.models import (
    AuditDetail,
    ClientsDocument,
    Draining,
    Fault,
    Held,
    KickResult,
    LagDocument,
    NodeStatus,
    PoolDocument,
    Readiness,
    ReloadResult,
    UnconfirmedDocument,
)
from fanout.api.topic_facts import TopicExplanation
from fanout.certificates import client_context
from fanout.config import read_token
from fanout.errors import (
    AuditRefused,
    ConfigError,
    ConfigFault,
    FanoutError,
    NodeSilent,
    NodeUnreachable,
    RequestRefused,
)
from fanout.runtime.http_client import AnswerWithoutEnd, node_client, read_answer

__all__ = ["NodeClient", "ask_until", "pool_clients"]

_TIMEOUT_S: Final = 3.0
"""Time limit of connecting and of each answer; a healthy node answers within milliseconds."""

_EXPLAIN: Final = httpx.Timeout(_TIMEOUT_S, read=60.0)
"""Time limit of an explanation, in which the node asks its primary and reads its log."""
_RELOAD: Final = httpx.Timeout(_TIMEOUT_S, read=60.0)
"""Time limit of a reload, which reads files and removes the values of selectors."""
_STREAM: Final = httpx.Timeout(_TIMEOUT_S, read=60.0)
"""Time limit between two pieces of a stream; a node sends a comment after 15 s without events."""
_LINE_BYTES_MAX: Final = 1 << 20
"""Longest line of a stream; that of a value with the longest topic takes about half of it."""
_AUDIT: Final = httpx.Timeout(_TIMEOUT_S, read=None)
"""An audit takes as long as its primary; there is no time limit before the answer begins."""
_READ_S: Final = 30.0
"""Time limit of a whole answer, from its begin."""
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Longest answer; a link takes about 1,000 bytes of it."""

_OPERATORS_ONLY: Final = frozenset({401, 403})
_REFUSALS: Final = frozenset({409, 422, 429})
_NO_LINK: Final = 404
"""Of audits; elsewhere it is the answer of another server, or of an older node."""

_PAUSE_S: Final = 0.5
"""Between two questions of `ask_until`."""

Document = TypeVar("Document", bound=BaseModel)
A = TypeVar("A")


def ask_until(
    ask: Callable[[], A],
    accepts: Callable[[A], bool],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> A:
    """Ask until the answer is accepted or the time is up, and return the last answer.

    Args:
        ask: Asks once.
        accepts: Returns whether an answer is the one that is waited for.
        timeout_s: Time limit; 0 asks once.
        clock: Tells seconds.
        sleep: Pauses.

    Raises:
        NodeUnreachable: The node could not be reached at the last try.
    """
    deadline = clock() + timeout_s
    while True:
        left_s = deadline - clock()
        try:
            answer = ask()
        except NodeUnreachable:
            if left_s <= 0:
                raise
        else:
            if accepts(answer) or left_s <= 0:
                return answer
        sleep(max(0.0, min(_PAUSE_S, left_s)))


def _trust() -> ssl.SSLContext | bool:
    """Return what verifies nodes: the authorities in the file of the environment, or those of httpx.

    Raises:
        ConfigError: The file cannot be used.
    """
    authorities = os.environ.get("FANOUT_CA_FILE")
    if not authorities:
        return True
    context, faults = client_context(Path(authorities), name="FANOUT_CA_FILE")
    if faults:
        hint = "Give the PEM file with the CA of the node's certificate."
        raise ConfigError("FANOUT_CA_FILE", (ConfigFault("", faults[0][1], hint),))
    return context


class NodeClient:
    """One node's HTTP endpoints; a context manager that closes its connection.

    Every method may raise:
        NodeUnreachable: Nothing answered in time, or the answer is not that of a node.
        RequestRefused: The node answers operators only, and this command is none to it; or it refuses the request.
    """

    def __init__(self, url: str, *, token_file: Path | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        """Remember the address; the first request connects.

        Args:
            url: Base URL, as from `node_url`.
            token_file: Token of the node, for what it shows to operators only; None for none.
            timeout_s: Time limit of connecting and of each answer.

        Raises:
            ConfigError: The file of the token, or that of `FANOUT_CA_FILE`, cannot be used.
        """
        self.url = url
        authorization = "" if token_file is None else f"Bearer {read_token(token_file)}"
        self._http = node_client(timeout_s=timeout_s, authorization=authorization, verify=_trust())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def readiness(self) -> Readiness:
        """Return `/readyz`, ready or not."""
        return self._fetch(Readiness, "/readyz", answers=(200, 503))

    def status(self) -> NodeStatus:
        """Return `/v1/status`."""
        return self._fetch(NodeStatus, "/v1/status")

    def lag(self) -> LagDocument:
        """Return `/v1/lag`."""
        return self._fetch(LagDocument, "/v1/lag")

    def pool(self) -> PoolDocument:
        """Return `/v1/pool`; a node in no pool refuses."""
        return self._fetch(PoolDocument, "/v1/pool")

    def drain(self) -> Draining:
        """Make the node drain, and return its answer."""
        return self._fetch(Draining, "/v1/drain", method="POST", answers=(202,))

    def hold(self, *, disconnect: bool) -> Held:
        """Hold the node out of its pool, and return its answer; a node that drains or stops refuses."""
        return self._fetch(Held, "/v1/hold", method="POST", json={"disconnect": disconnect})

    def undrain(self) -> Held:
        """End the hold, and return the node's answer; a node that drains or stops refuses."""
        return self._fetch(Held, "/v1/undrain", method="POST")

    def reload(self, *, dry_run: bool, partial: bool) -> ReloadResult:
        """Make the node read its configuration again, and return its answer.

        The node refuses a file with faults, and changes that need a restart.

        Args:
            dry_run: True if only to answer what would change.
            partial: True if changes that need a restart are left out.
        """
        asked = {"dry_run": dry_run, "partial": partial}
        return self._fetch(ReloadResult, "/v1/reload", method="POST", json=asked, timeout=_RELOAD)

    def clients(self, **asked: str | int | None) -> ClientsDocument:
        """Return a page of `/v1/clients`; `asked` are its parameters, None for those left out."""
        return self._fetch(ClientsDocument, "/v1/clients", asked)

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        """Return a page of `/v1/topics`; `asked` are the parameters."""
        return self._fetch(TopicsDocument, "/v1/topics", asked)

    def topic(self, topic: str) -> TopicDetail:
        """Return `/v1/topics/{topic}`."""
        return self._fetch(TopicDetail, f"/v1/topics/{quote(topic, safe='')}")

    def top(self, count: int) -> TopTopics:
        """Return `/v1/top`."""
        return self._fetch(TopTopics, "/v1/top", {"count": count})

    def events(self, *, limit: int) -> EventsDocument:
        """Return the newest events of `/v1/events`."""
        return self._fetch(EventsDocument, "/v1/events", {"limit": limit})

    def stream(self, path: str, asked: Mapping[str, str], *, last_id: str = "") -> Iterator[tuple[str, str, Any]]:
        """Yield server-sent events until the node ends them: name, identifier (empty for none) and data.

        The node is unreachable if it is silent for a minute.

        Args:
            path: `/v1/stream` or `/v1/events`.
            asked: Its parameters.
            last_id: Identifier of the newest event that is known; empty for none.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        name, event_id = "", ""
        with self._answer("GET", path, timeout=_STREAM, params=asked, headers=headers) as answer:
            if answer.status_code != 200:
                raise self._refusal(answer.status_code, self._read(answer), path)
            for line in self._lines(answer, path):
                key, _, text = line.partition(": ")
                if key == "id":
                    event_id = text
                elif key == "event":
                    name = text
                elif key == "data":
                    yield name, event_id, self._json(text, path)
                    name, event_id = "", ""

    def kick(self, client_id: str, *, clean: bool) -> KickResult:
        """Send a client away, and return the node's answer; a node that has no such client refuses."""
        return self._fetch(KickResult, "/v1/clients/kick", method="POST", json={"client_id": client_id, "clean": clean})

    def explain(self, topic: str, *, at_primary: bool = False, client_id: str | None = None) -> TopicExplanation:
        """Return `/v1/explain` for a topic; the node asks its primary, which takes some seconds at most.

        A node that explains another topic now refuses.

        Args:
            topic: The topic.
            at_primary: True if it is the topic's name at the primary, not at the node.
            client_id: The client that does not get it; None for none.
        """
        asked = {"topic": topic, "at_primary": at_primary, "client": client_id}
        return self._fetch(TopicExplanation, "/v1/explain", asked, timeout=_EXPLAIN)

    def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        """Audit a link, without a time limit, and return the result.

        Raises:
            AuditRefused: The node refuses, with its reason.
        """
        path, asked = f"/v1/links/{link}/audit", {"confirmed": confirmed}
        return self._fetch(AuditDetail, path, method="POST", json=asked, timeout=_AUDIT, refusal=AuditRefused)

    def unconfirmed(self, link: str, *, after: str = "") -> UnconfirmedDocument:
        """Return a page of a link's unconfirmed topics, after the topic `after`.

        Raises:
            AuditRefused: The node has no such link.
        """
        path = f"/v1/links/{link}/unconfirmed"
        return self._fetch(UnconfirmedDocument, path, {"after": after or None}, refusal=AuditRefused)

    def document(self, path: str) -> Any:
        """Return the JSON document at `path` as the node sent it."""
        # Only `/readyz` answers 503 with a document.
        return self._ask("GET", path, answers=(200, 503))

    def _fetch(
        self,
        model: type[Document],
        path: str,
        asked: Mapping[str, object] | None = None,
        *,
        method: str = "GET",
        **further: Any,
    ) -> Document:
        """Return the document at a path; see `_ask`. Parameters that are None are left out."""
        params: dict[str, Any] = {name: value for name, value in (asked or {}).items() if value is not None}
        document = self._ask(method, path, params=params, **further)
        try:
            return model.model_validate(document)
        except ValidationError as error:
            raise self._stranger(f"an unexpected {model.__name__} document") from error

    def _ask(
        self,
        method: str,
        path: str,
        *,
        answers: Sequence[int] = (200,),
        refusal: type[FanoutError] = RequestRefused,
        **further: Any,
    ) -> Any:
        """Return the JSON document that answers a request.

        Args:
            method: GET or POST.
            path: The path.
            answers: Status codes of an answer.
            refusal: The error if the node refuses.
            further: Further arguments of httpx.
        """
        with self._answer(method, path, **further) as answer:
            body = self._read(answer)
        if answer.status_code not in answers:
            raise self._refusal(answer.status_code, body, path, refusal)
        return self._json(body, path)

    @contextmanager
    def _answer(self, method: str, path: str, **further: Any) -> Iterator[httpx.Response]:
        """Give an answer that is read inside; turn faults of the connection into errors with advice."""
        limits: httpx.Timeout = further.get("timeout", self._http.timeout)
        try:
            with self._http.stream(method, self.url + path, **further) as answer:
                yield answer
        except httpx.TimeoutException as error:
            kind = NodeSilent if isinstance(error, httpx.ReadTimeout) else NodeUnreachable
            limit_s = limits.read if kind is NodeSilent else limits.connect
            raise kind(
                f"no answer from {self.url} within {limit_s:g} s",
                hint="The node is overloaded, or a firewall drops packets: see the node's log",
            ) from error
        except httpx.ConnectError as error:
            raise _connect_failure(self.url, error) from error
        except httpx.TransportError as error:
            raise NodeUnreachable(
                f"the server at {self.url} does not speak HTTP",
                hint=(
                    "Give the address of http.listen, not that of an MQTT listener; a node that is stopping looks"
                    " the same"
                ),
            ) from error

    def _refusal(self, status: int, body: bytes, path: str, refusal: type[FanoutError] = RequestRefused) -> FanoutError:
        """Return the error for an answer that is none: the node refuses, or is no node of this version."""
        if status in _OPERATORS_ONLY:
            refusal = RequestRefused
        elif status not in _REFUSALS and not (status == _NO_LINK and refusal is AuditRefused):
            return self._stranger(f"status {status} for {path}")
        try:
            fault = Fault.model_validate(self._json(body, path))
        except ValidationError:
            return self._stranger(f"status {status} for {path}")
        return refusal(fault.error, hint=fault.hint)

    def _read(self, answer: httpx.Response) -> bytes:
        try:
            return read_answer(answer, bytes_max=_ANSWER_BYTES_MAX, within_s=_READ_S)
        except AnswerWithoutEnd as error:
            raise self._stranger("an answer without end") from error

    def _lines(self, answer: httpx.Response, path: str) -> Iterator[str]:
        """Yield lines, which end at a line feed only: `iter_lines` of httpx ends them at U+2028 and others too."""
        rest = b""
        for piece in answer.iter_raw():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if len(rest) > _LINE_BYTES_MAX:
                raise self._stranger(f"a line without end in {path}")

    def _json(self, body: bytes | str, path: str) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:  # not JSON, not text, or nested too deeply
            raise self._stranger(f"no JSON for {path}") from error

    def _stranger(self, what: str) -> NodeUnreachable:
        return NodeUnreachable(
            f"{self.url} answers, but not as a fanout node of this version ({what})",
            hint="Check the address, and that the node and this command are of the same version",
        )


@contextmanager
def pool_clients(
    url: str, *, token_file: Path | None
) -> Iterator[tuple[PoolDocument, dict[str, NodeClient], dict[str, str]]]:
    """Give the document of a pool, clients of its members by name, the one at `url` first, and members left out.

    Args:
        url: HTTP address of one of them.
        token_file: Token of all of them; None for none.

    Raises:
        NodeUnreachable: The node at the address does not answer.
        RequestRefused: It is in no pool, or refuses.
    """
    with ExitStack() as stack:
        first = stack.enter_context(NodeClient(url, token_file=token_file))
        pool = first.pool()
        needs_tls = token_file is not None and url.startswith("https:")
        urls, left_out = pool.others_to_ask(needs_tls=needs_tls)
        others = {name: stack.enter_context(NodeClient(at, token_file=token_file)) for name, at in urls.items()}
        yield pool, {pool.node: first, **others}, left_out


def _connect_failure(url: str, error: httpx.ConnectError) -> NodeUnreachable:
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            hint = "Check its spelling, and DNS"
            if httpx.URL(url).path.strip("/") or "#" in url:
                hint += "; or is it a topic? That comes before the node's address"
            return NodeUnreachable(f"the host name in {url} is not known", hint=hint)
        if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
            return NodeUnreachable(
                f"nothing listens at {url} (connection refused)",
                hint="Is the node running? Give its http.listen address as an argument or in FANOUT_URL",
            )
    return NodeUnreachable(f"cannot connect to {url}: {error}", hint="Check the address and the network")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
