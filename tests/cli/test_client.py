"""Asking a node: what can go wrong, and what is said about it."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.arguments.node_options import node_url
from fanout.cli.asking import client
from fanout.cli.asking.client import NodeClient
from fanout.cli.output.exit_codes import ExitCode
from fanout.errors import NodeSilent, NodeUnreachable
from fanout.node.browse.streams import frame
from tests.api.stand_in import ready_node, serving, syncing_node
from tests.cli.test_documentation import options
from tests.support.mosquitto import free_port

ASKING = sorted(command for command, found in options().items() if "--token-file" in found)
ARGUMENTS = {
    "explain": ["plant/1"],
    "clients kick": ["app-1"],
    "audit": ["plant"],
    "topics": ["#"],
    "trace": ["plant/1"],
}
"""Arguments in front of the URL."""


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_a_node_is_named_by_an_argument_or_an_option(command: tuple[str, ...], runner: CliRunner) -> None:
    """Each command that asks a node takes its address in both ways, and prints JSON if wanted."""
    url = f"http://127.0.0.1:{free_port()}"
    words = [*command, *ARGUMENTS.get(" ".join(command), [])]
    for given in ([url], ["--url", url, "--json"]):
        answer = runner.invoke(app, [*words, *given])
        assert answer.exit_code == ExitCode.UNREACHABLE, answer.output
        assert f"nothing listens at {url}" in answer.stderr
    if command not in {("reload",), ("trace",)}:  # which take several
        answer = runner.invoke(app, [*words, url, "--url", url])
        assert answer.exit_code == ExitCode.USAGE
        assert f"unexpected extra argument ({url})" in answer.stderr


@contextlib.contextmanager
def answering(reply: bytes | None) -> Iterator[str]:
    """Listen on a free port and answer one connection with `reply`; None never answers."""
    release = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                if reply is None:
                    release.wait(30)
                else:
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            release.set()
            thread.join(10)


def http_reply(body: bytes, *, status: str = "200 OK") -> bytes:
    """Return a whole HTTP response."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


COMPRESSED = http_reply(gzip.compress(b'{"ready": true}')).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1)
"""A little that may become a lot."""


def refusal(url: str, *, timeout_s: float = 3.0) -> NodeUnreachable:
    """Return the error of asking `url`."""
    with NodeClient(url, timeout_s=timeout_s) as client, pytest.raises(NodeUnreachable) as caught:
        client.readiness()
    return caught.value


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("edge-1:8080", "http://edge-1:8080"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("https://proxy.example/edge-1/", "https://proxy.example/edge-1"),
    ],
)
def test_node_url(text: str, url: str) -> None:
    """The scheme may be left out, and a trailing slash makes no difference."""
    assert node_url(text) == url


@pytest.mark.parametrize(
    "text", ["mqtt://127.0.0.1:1883", "http://", "http://[::1", "http://a:b", "8080", "http://8080/", "a:65536"]
)
def test_node_url_refuses(text: str) -> None:
    """What is not an HTTP address is refused before anything is asked."""
    with pytest.raises(ValueError, match="is not an HTTP address"):
        node_url(text)


def test_a_password_in_an_address_is_not_shown(runner: CliRunner) -> None:
    """It is refused, also where the address is wrong otherwise."""
    for url in ("http://user:p4ss@127.0.0.1:9", "ftp://user:p4ss@a", "user:p4ss@a", "http://user:p4ss@a:b"):
        for words in (["ready", url], ["ready", "--url", url], ["reload", url], ["topics", url]):
            answer = runner.invoke(app, words)
            if url.startswith("http") or words[0] != "topics":
                assert (answer.exit_code, "a node takes a token: --token-file" in answer.stderr) == (2, True)
                assert "p4ss" not in answer.output


def test_an_address_in_place_of_an_argument(runner: CliRunner) -> None:
    """`http://` tells an address from a Topic Filter or the name of a link; with `--url` it is the argument."""
    url = f"http://127.0.0.1:{free_port()}"
    for words in (["topics", url], ["audit", url], ["topics", "http://a", "--url", url]):
        answer = runner.invoke(app, words)
        assert (answer.exit_code, f"nothing listens at {url}" in answer.stderr) == (3, True), answer.output


def test_documents_arrive_as_models() -> None:
    """What the node sends is what the client returns."""
    node = ready_node()
    with serving(node) as url, NodeClient(url) as client:
        assert client.readiness() == node.readiness()
        assert client.status() == node.status()
        assert client.lag() == node.lag()


def test_not_ready_is_an_answer() -> None:
    """A 503 of `/readyz` is a document, not a failure."""
    with serving(syncing_node()) as url, NodeClient(url) as client:
        assert client.readiness().ready is False


def test_connection_refused_says_what_to_check() -> None:
    """The commonest failure names the address, the setting and the variable."""
    port = free_port()
    error = refusal(f"http://127.0.0.1:{port}")
    assert error.message == f"nothing listens at http://127.0.0.1:{port} (connection refused)"
    assert "http.listen" in error.hint
    assert "FANOUT_URL" in error.hint


def test_unknown_host_says_what_to_check() -> None:
    """A name that does not resolve is told apart from a node that is down."""
    error = refusal("http://no-such-host.invalid:8080")
    assert error.message == "the host name in http://no-such-host.invalid:8080 is not known"
    assert "topic" not in error.hint


def test_a_topic_in_place_of_the_address_is_told() -> None:
    """`fanout topics URL FILTER` has them the wrong way round."""
    error = refusal("http://no-such-host.invalid/137/#")
    assert error.hint == "Check its spelling, and DNS; or is it a topic? That comes before the node's address"


def test_silence_is_a_timeout() -> None:
    """A node that accepts and never answers does not block the command."""
    with answering(None) as url:
        error = refusal(url, timeout_s=0.2)
    assert isinstance(error, NodeSilent)
    assert error.message == f"no answer from {url} within 0.2 s"


def test_mqtt_listener_is_recognised() -> None:
    """Asking the MQTT port says so, more or less."""
    with answering(b"\x20\x03\x00\x84\x00") as url:
        error = refusal(url)
    assert error.message == f"the server at {url} does not speak HTTP"
    assert "not that of an MQTT listener" in error.hint


def test_closed_connection_is_not_http() -> None:
    """A listener that hangs up is not a node."""
    with answering(b"") as url:
        assert "does not speak HTTP" in refusal(url).message


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (http_reply(b"<html>", status="404 Not Found"), "status 404 for /readyz"),
        (http_reply(b"<html>"), "no JSON for /readyz"),
        (http_reply(b"\xff\xfeA"), "no JSON for /readyz"),
        (http_reply(json.dumps({"ready": True}).encode()), "an unexpected Readiness document"),
        (http_reply(b"[" * 100_000), "no JSON for /readyz"),
        (COMPRESSED, "no JSON for /readyz"),
    ],
)
def test_another_service_is_recognised(reply: bytes, what: str) -> None:
    """A web server that is not a node is named as such."""
    with answering(reply) as url:
        assert refusal(url).message == (f"{url} answers, but not as a fanout node of this version ({what})")


@pytest.mark.parametrize(("limit", "value"), [("_ANSWER_BYTES_MAX", 2**20), ("_READ_S", 0.2)])
def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch, limit: str, value: float) -> None:
    """Neither one that is too long nor one that never comes to its end."""
    monkeypatch.setattr(client, limit, value)
    sent, thread = 0, threading.Thread()

    def answer(listener: socket.socket) -> None:
        nonlocal sent
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while sent < 2**28:
                connection.sendall(b"x" * 65_536)
                sent += 65_536

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "an answer without end" in refusal(url).message
        thread.join(10)
    assert sent < 2**28


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on this machine is asked directly whatever the environment says."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(ready_node()) as url, NodeClient(url) as client:
        assert client.readiness().ready is True


@pytest.mark.parametrize("text", ["x\u2028y", "x\u2029y", "x\x85y"])
def test_a_line_of_a_stream_ends_at_a_line_feed_only(text: str) -> None:
    """WHATWG HTML 9.2.5: these are letters of a value, as JSON may contain them."""
    sent = frame("value", {"value": text}) + frame("end", {})
    with answering(http_reply(sent)) as url, NodeClient(url) as node:
        assert list(node.stream("/v1/stream", {})) == [("value", "", {"value": text}), ("end", "", {})]


def test_a_line_of_a_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose line has no end does not fill the memory."""
    monkeypatch.setattr(client, "_LINE_BYTES_MAX", 1000)
    with (
        answering(http_reply(b"data: " + bytes(1000))) as url,
        NodeClient(url) as node,
        pytest.raises(NodeUnreachable, match="a line without end"),
    ):
        list(node.stream("/v1/stream", {}))
