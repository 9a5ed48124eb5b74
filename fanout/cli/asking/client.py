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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from fanout.certificates import load_authorities
from fanout.config import read_token
from fanout.errors import AuditRefused, ConfigError, ConfigFault, NodeSilent, NodeUnreachable, RequestRefused

__all__ = ["NodeClient", "ask_until"]

_TIMEOUT_S: Final = 3.0
"""Time limit of connecting and of each answer; a healthy node answers within milliseconds."""

_EXPLAIN_S: Final = 60.0
"""Time limit of an explanation, in which the node asks its primary and reads its log."""
_RELOAD_S: Final = 60.0
"""Time limit of a reload, which reads files and removes the values of selectors."""
_STREAM_SILENT_S: Final = 60.0
"""Time limit between two pieces of a stream; a node sends a comment after 15 s without events."""
_LINE_BYTES_MAX: Final = 1 << 20
"""Longest line of a stream; that of a value with the longest topic takes about half of it."""
_READ_S: Final = 30.0
"""Time limit of a whole answer, from its begin."""
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Longest answer; a link takes about 1,000 bytes of it."""

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


def _trusting(path: Path) -> ssl.SSLContext:
    """Return a context that trusts the authorities in a file.

    Raises:
        ConfigError: The file cannot be used.
    """
    context = ssl.create_default_context()
    # As links do: Python 3.13 refuses authorities without a key usage, which `openssl req -x509` makes.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if faults := load_authorities(context, path, name="FANOUT_CA_FILE"):
        hint = "Give the PEM file with the CA of the node's certificate."
        raise ConfigError("FANOUT_CA_FILE", (ConfigFault("", faults[0][1], hint),))
    return context


class NodeClient:
    """One node's HTTP endpoints; a context manager that closes its connection."""

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S, token_file: Path | None = None) -> None:
        """Prepare; nothing is asked yet.

        Args:
            url: Base URL of the node.
            timeout_s: Time limit of connecting and of each answer.
            token_file: The node's `http.token_file`, or a copy; None for none.

        Raises:
            ConfigError: The file cannot be used.
        """
        self.url = url
        authorization = {} if token_file is None else {"Authorization": f"Bearer {read_token(token_file)}"}
        authorities = os.environ.get("FANOUT_CA_FILE")
        # Nodes are asked directly, not through a proxy of the environment.
        self._http = httpx.Client(
            timeout=timeout_s,
            trust_env=False,
            follow_redirects=False,
            verify=True if not authorities else _trusting(Path(authorities)),
            headers={"Accept-Encoding": "identity", **authorization},  # decompressed bytes have no bound
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def readiness(self) -> Readiness:
        """Return `/readyz`, whether ready or not."""
        return self._parse(Readiness, self.document("/readyz"))

    def status(self) -> NodeStatus:
        """Return `/v1/status`."""
        return self._parse(NodeStatus, self.document("/v1/status"))

    def lag(self) -> LagDocument:
        """Return `/v1/lag`."""
        return self._parse(LagDocument, self.document("/v1/lag"))

    def pool(self) -> PoolDocument:
        """Return `/v1/pool`.

        Raises:
            RequestRefused: The node is in no pool.
        """
        return self._parse(PoolDocument, self._allowed(self._ask("GET", "/v1/pool"), "the pool"))

    def drain(self) -> Draining:
        """Make the node drain, and return its answer."""
        answer = self._ask("POST", "/v1/drain")
        if answer.status_code != 202:
            raise self._stranger(f"status {answer.status_code} for draining")
        return self._parse(Draining, self._json(answer, "draining"))

    def hold(self, *, disconnect: bool) -> Held:
        """Hold the node out of its pool, and return its answer.

        Raises:
            RequestRefused: The node drains or stops.
        """
        return self._order(Held, "/v1/hold", json={"disconnect": disconnect})

    def undrain(self) -> Held:
        """End the hold, and return the node's answer.

        Raises:
            RequestRefused: The node drains or stops.
        """
        return self._order(Held, "/v1/undrain")

    def reload(self, *, dry_run: bool, partial: bool) -> ReloadResult:
        """Make the node read its configuration again, and return its answer.

        Args:
            dry_run: True if only to answer what would change.
            partial: True if changes that need a restart are left out.

        Raises:
            RequestRefused: The file has faults, or changes need a restart.
        """
        asked, patient = {"dry_run": dry_run, "partial": partial}, httpx.Timeout(_TIMEOUT_S, read=_RELOAD_S)
        return self._order(ReloadResult, "/v1/reload", json=asked, timeout=patient)

    def clients(
        self,
        *,
        order: str,
        limit: int,
        after: str = "",
        client_id: str | None = None,
        topic_filter: str | None = None,
    ) -> ClientsDocument:
        """Return a page of `/v1/clients`.

        Raises:
            RequestRefused: The node shows no clients to this command, or has no such client.
        """
        asked = {"order": order, "limit": str(limit), "after": after}
        if client_id is not None:
            asked["client_id"] = client_id
        if topic_filter is not None:
            asked["filter"] = topic_filter
        return self._parse(ClientsDocument, self._allowed(self._ask("GET", "/v1/clients", params=asked), "the clients"))

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        """Return a page of `/v1/topics`; `asked` are the parameters."""
        return self._read_document(TopicsDocument, "/v1/topics", asked)

    def topic(self, topic: str) -> TopicDetail:
        """Return `/v1/topics/{topic}`."""
        return self._read_document(TopicDetail, f"/v1/topics/{quote(topic, safe='')}", {})

    def top(self, count: int) -> TopTopics:
        """Return `/v1/top`."""
        return self._read_document(TopTopics, "/v1/top", {"count": str(count)})

    def events(self, *, limit: int) -> EventsDocument:
        """Return the newest events of `/v1/events`."""
        return self._read_document(EventsDocument, "/v1/events", {"limit": str(limit)})

    def stream(self, path: str, asked: Mapping[str, str], *, last_id: str = "") -> Iterator[tuple[str, str, Any]]:
        """Yield server-sent events until the node ends them: name, identifier (empty for none) and data.

        Args:
            path: `/v1/stream` or `/v1/events`.
            asked: Its parameters.
            last_id: Identifier of the newest event that is known; empty for none.

        Raises:
            NodeUnreachable: The node cannot be reached, or is silent for a minute.
            RequestRefused: The node refuses it.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        timeout = httpx.Timeout(_TIMEOUT_S, read=_STREAM_SILENT_S)
        name, event_id = "", ""
        with (
            self._faults(timeout),
            self._http.stream("GET", self.url + path, params=asked, headers=headers, timeout=timeout) as answer,
        ):
            if answer.status_code != 200:
                whole = httpx.Response(answer.status_code, content=self._read(answer))
                self._allowed(whole, path)
                raise self._stranger(f"status {answer.status_code} for {path}")
            for line in self._lines(answer, path):
                key, _, text = line.partition(": ")
                if key == "id":
                    event_id = text
                elif key == "event":
                    name = text
                elif key == "data":
                    try:
                        yield name, event_id, json.loads(text)
                    except (ValueError, RecursionError) as error:
                        raise self._stranger(f"no JSON in {path}") from error
                    name, event_id = "", ""

    def _read_document(self, model: type[Document], path: str, asked: Mapping[str, str]) -> Document:
        return self._parse(model, self._allowed(self._ask("GET", path, params=dict(asked)), path))

    def kick(self, client_id: str, *, clean: bool) -> KickResult:
        """Send a client away, and return the node's answer.

        Raises:
            RequestRefused: The node has no such client, or does not allow it.
        """
        return self._order(KickResult, "/v1/clients/kick", json={"client_id": client_id, "clean": clean})

    def explain(self, topic: str, *, at_primary: bool = False, client_id: str | None = None) -> TopicExplanation:
        """Return `/v1/explain` for a topic; the node asks its primary, which takes some seconds at most.

        Args:
            topic: The topic.
            at_primary: True if it is the topic's name at the primary, not at the node.
            client_id: The client that does not get it; None for none.

        Raises:
            RequestRefused: The node explains another topic now, or nothing to this command.
        """
        query = {"topic": topic, "at_primary": str(at_primary).lower()}
        if client_id is not None:
            query["client"] = client_id
        patient = httpx.Timeout(_TIMEOUT_S, read=_EXPLAIN_S)
        answer = self._ask("GET", "/v1/explain", params=query, timeout=patient)
        return self._parse(TopicExplanation, self._allowed(answer, "the explanation"))

    def _order(self, model: type[Document], path: str, **further: Any) -> Document:
        return self._parse(model, self._allowed(self._ask("POST", path, **further), path))

    def _allowed(self, answer: httpx.Response, what: str) -> Any:
        """Return the document of an answer.

        Raises:
            RequestRefused: The node refuses, with its reason.
        """
        if answer.status_code in {409, 422, 429}:
            fault = self._parse(Fault, self._json(answer, what))
            raise RequestRefused(fault.error, hint=fault.hint)
        if answer.status_code != 200:
            raise self._stranger(f"status {answer.status_code} for {what}")
        return self._json(answer, what)

    def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
        """Audit a link, without a time limit, and return the result.

        Raises:
            AuditRefused: The node refuses, with its reason.
        """
        path, patient = f"/v1/links/{link}/audit", httpx.Timeout(_TIMEOUT_S, read=None)
        answer = self._ask("POST", path, json={"confirmed": confirmed}, timeout=patient)
        if answer.status_code in {404, 409}:
            fault = self._parse(Fault, self._json(answer, "the audit"))
            raise AuditRefused(fault.error, hint=fault.hint)
        if answer.status_code != 200:
            raise self._stranger(f"status {answer.status_code} for an audit")
        return self._parse(AuditDetail, self._json(answer, "the audit"))

    def unconfirmed(self, link: str, *, after: str = "") -> UnconfirmedDocument:
        """Return a page of a link's unconfirmed topics, after the topic `after`.

        Raises:
            AuditRefused: The node has no such link.
        """
        path = f"/v1/links/{link}/unconfirmed"
        answer = self._ask("GET", path, params={"after": after} if after else {})
        if answer.status_code == 404:
            fault = self._parse(Fault, self._json(answer, path))
            raise AuditRefused(fault.error, hint=fault.hint)
        if answer.status_code != 200:
            raise self._stranger(f"status {answer.status_code} for {path}")
        return self._parse(UnconfirmedDocument, self._json(answer, path))

    def document(self, path: str) -> Any:
        """Return the JSON document at `path` as the node sent it.

        Raises:
            NodeUnreachable: Nothing answered in time, or the answer is not that of a node.
        """
        answer = self._ask("GET", path)
        # Only `/readyz` answers 503 with a document.
        if answer.status_code not in {200, 503}:
            raise self._stranger(f"status {answer.status_code} for {path}")
        return self._json(answer, path)

    def _ask(self, method: str, path: str, **further: Any) -> httpx.Response:
        """Return the answer to a request.

        Raises:
            NodeUnreachable: Nothing answered in time.
            RequestRefused: The node answers operators only, and this command is none to it.
        """
        answer = self._answer(method, path, **further)
        if answer.status_code in {401, 403}:
            fault = self._parse(Fault, self._json(answer, path))
            raise RequestRefused(fault.error, hint=fault.hint)
        return answer

    def _answer(self, method: str, path: str, **further: Any) -> httpx.Response:
        timeout: httpx.Timeout = further.get("timeout", self._http.timeout)
        with self._faults(timeout), self._http.stream(method, self.url + path, **further) as answer:
            return httpx.Response(answer.status_code, content=self._read(answer))

    @contextmanager
    def _faults(self, limits: httpx.Timeout) -> Iterator[None]:
        """Turn faults of the connection into errors with advice."""
        try:
            yield
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

    def _read(self, answer: httpx.Response) -> bytes:
        body, end_s = bytearray(), time.monotonic() + _READ_S
        for piece in answer.iter_raw():
            body += piece
            if len(body) > _ANSWER_BYTES_MAX or time.monotonic() > end_s:
                raise self._stranger("an answer without end")
        return bytes(body)

    def _lines(self, answer: httpx.Response, path: str) -> Iterator[str]:
        """Yield lines, which end at a line feed only: `iter_lines` of httpx ends them at U+2028 and others too."""
        rest = b""
        for piece in answer.iter_raw():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if len(rest) > _LINE_BYTES_MAX:
                raise self._stranger(f"a line without end in {path}")

    def _json(self, answer: httpx.Response, path: str) -> Any:
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:  # not JSON, not text, or nested too deeply
            raise self._stranger(f"no JSON for {path}") from error

    def _parse(self, model: type[Document], document: Any) -> Document:
        try:
            return model.model_validate(document)
        except ValidationError as error:
            raise self._stranger(f"an unexpected {model.__name__} document") from error

    def _stranger(self, what: str) -> NodeUnreachable:
        return NodeUnreachable(
            f"{self.url} answers, but not as a fanout node of this version ({what})",
            hint="Check the address, and that the node and this command are of the same version",
        )


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
