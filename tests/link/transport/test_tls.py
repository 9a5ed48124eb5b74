"""A link to a Mosquitto with TLS: what it verifies, what it shows, and what it says when either is wrong."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fanout.certificates import fingerprint
from fanout.config import Address
from fanout.errors import TlsFailed
from fanout.link import connack_probe as probe
from fanout.link.model.states import LinkState
from fanout.link.transport.connection import LinkConnection, connect
from fanout.link.transport.tls import LinkTls, load_tls
from tests.link.harness import Running, config_for, logging_to, running
from tests.support.certificates import Authority, client_context
from tests.support.mosquitto import Mosquitto, free_port, publish_all, publisher
from tests.support.network import Proxy

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OLD = "[default]\nopenssl_conf = o\n[o]\nssl_conf = s\n[s]\nsystem_default = d\n[d]\nMaxProtocol = TLSv1.2\n"
"""What keeps a program that uses OpenSSL from TLS 1.3."""


def at(port: int, *, scheme: str = "mqtts", host: str = "127.0.0.1") -> dict[str, Any]:
    """Return the address of a primary, for `config_for`."""
    return {"primaries": (Address(scheme, host, port),)}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give a certificate authority that has issued `server` and `client`."""
    made = Authority(tmp_path)
    made.issue("server")
    made.issue("client", subject="/CN=edge-1")
    return made


@contextmanager
def mosquitto_with_tls(authority: Authority, *settings: str) -> Iterator[tuple[Mosquitto, int]]:
    """Run a Mosquitto that shows `server`; give it and its port with TLS; its own port is plain."""
    directory, port = authority.certificate.parent, free_port()
    lines = [
        f"listener {port} 127.0.0.1",
        f"cafile {authority.certificate}",
        f"certfile {directory}/server.pem",
        f"keyfile {directory}/server.key",
    ]
    with Mosquitto(directory, settings=["per_listener_settings false", *lines, *settings]) as mosquitto:
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/1", b"x")])
        yield mosquitto, port


def showing(authority: Authority, name: str = "client") -> dict[str, Path]:
    """Return the keys of a link that shows a certificate."""
    directory = authority.certificate.parent
    return {"client_certificate_file": directory / f"{name}.pem", "client_key_file": directory / f"{name}.key"}


def expiry_known(link: Running) -> bool:
    """Return whether the status says when the primary's certificate expires."""
    return link.status.primary_certificate_expires_s is not None


@asynccontextmanager
async def live(port: int, **keys: Any) -> AsyncIterator[Running]:
    """Run a link over TLS that becomes live with what the primary has."""
    async with running(config_for(0, **{**at(port), **keys})) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {"plant/1": b"x"}
        yield link


async def failure(port: int, **keys: Any) -> tuple[str, str]:
    """Return what a link says that cannot connect: the problem, and the hint."""
    async with running(config_for(0, **{**at(port), **keys})) as link:
        await link.wait(lambda: link.status.last_error is not None)
        assert LinkState.LIVE.value not in link.sink.states()
        return str(link.status.last_error), str(link.status.last_error_hint)


@pytest.mark.mosquitto
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_link_replicates_over_tls(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """With both versions, through a client certificate that is required; updates come as over TCP, large ones too."""
    if version == "TLSv1.2":
        (tmp_path / "openssl.cnf").write_text(OLD)
        monkeypatch.setenv("OPENSSL_CONF", str(tmp_path / "openssl.cnf"))
    with mosquitto_with_tls(authority, "require_certificate true") as (mosquitto, port):
        monkeypatch.delenv("OPENSSL_CONF", raising=False)
        context = client_context(authority, *showing(authority).values())
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as spoken,
        ):
            assert spoken.version() == version
        async with live(port, ca_file=authority.certificate, **showing(authority)) as link:
            with publisher(mosquitto.port) as client:
                publish_all(client, [(f"plant/{number}", bytes(100_000)) for number in range(50)])
            await link.wait(lambda: len(link.values()) == 50 and set(link.values().values()) == {bytes(100_000)})
            assert link.status.counters.epochs_total == 1
            assert link.status.lag_ns is not None


@pytest.mark.mosquitto
async def test_a_pinned_certificate_needs_no_authority(authority: Authority) -> None:
    """One of several pins is enough; another certificate is told with its fingerprint."""
    directory = authority.certificate.parent
    seen = fingerprint(ssl.PEM_cert_to_DER_cert((directory / "server.pem").read_text()))
    with mosquitto_with_tls(authority) as (_, port):
        async with live(port, server_certificate_sha256=("0" * 64, seen)):
            pass
        assert await failure(port, server_certificate_sha256=("0" * 64,)) == (
            f"no TLS with mqtts://127.0.0.1:{port}: its certificate is not the pinned one; "
            f"the fingerprint seen is {seen}",
            "If the primary has a new certificate, have its administrator confirm this fingerprint and put it into "
            "server_certificate_sha256; else somebody else answers there",
        )


@pytest.mark.mosquitto
async def test_nothing_is_verified_only_where_that_is_asked_for(authority: Authority) -> None:
    """`tls_insecure` connects to whoever answers."""
    with mosquitto_with_tls(authority) as (_, port):
        async with live(port, tls_insecure=True):
            pass


@pytest.mark.mosquitto
async def test_what_is_wrong_with_the_primary_is_told(authority: Authority, tmp_path: Path) -> None:
    """Host name, dates, authority: each its own text, with what to do."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", name="other").certificate
    known = {"ca_file": authority.certificate}
    with mosquitto_with_tls(authority) as (mosquitto, port):
        named = f"no TLS with mqtts://127.0.0.1:{port}: "
        unknown = (
            "Set ca_file to the CA's certificate, and let the primary show those between both; or set "
            "server_certificate_sha256 to the fingerprint of its own"
        )
        assert await failure(port, ca_file=other) == (
            f"{named}ca_file, {other}, does not know the CA of its certificate",
            unknown,
        )
        assert await failure(port) == (f"{named}the system does not know the CA of its certificate", unknown)
        certificates = {
            "its certificate is not for 127.0.0.1": {"names": "DNS:broker.example"},
            "its certificate, or one above it, has expired": {"valid": (-2 * HOUR, -HOUR)},
            "its certificate, or one above it, is not valid yet": {"valid": (HOUR, 2 * HOUR)},
        }
        hints = []
        for problem, more in certificates.items():
            authority.issue("server", **more)  # type: ignore[arg-type]  # either of both
            mosquitto.restart()
            told, hint = await failure(port, **known)
            assert told == named + problem
            hints.append(hint)
        assert hints == [
            "Write a name that is in the certificate in primary, or have this one put into the certificate "
            "(subjectAltName)",
            "Renew the primary's certificate; and check this machine's clock",
            "Check this machine's clock, and the dates of the certificate",
        ]


@pytest.mark.mosquitto
async def test_a_self_signed_certificate_can_be_trusted(tmp_path: Path) -> None:
    """As its own CA; the text says that it is one."""
    alone = Authority(tmp_path, name="server", names="IP:127.0.0.1")
    with mosquitto_with_tls(alone) as (_, port):
        assert await failure(port) == (
            f"no TLS with mqtts://127.0.0.1:{port}: its certificate is self-signed, and the system does not have it",
            "Set ca_file to a copy of it, or server_certificate_sha256 to its fingerprint",
        )
        async with live(port, ca_file=alone.certificate):
            pass


@pytest.mark.mosquitto
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_refused_client_certificate_is_told(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """A missing one, and one of a stranger; with TLS 1.3 that comes only when the link reads."""
    if version == "TLSv1.2":
        (tmp_path / "openssl.cnf").write_text(OLD)
        monkeypatch.setenv("OPENSSL_CONF", str(tmp_path / "openssl.cnf"))
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    stranger.issue("client")
    with mosquitto_with_tls(authority, "require_certificate true") as (_, port):
        monkeypatch.delenv("OPENSSL_CONF", raising=False)
        named, known = f"no TLS with mqtts://127.0.0.1:{port}: ", {"ca_file": authority.certificate}
        # The primary closes with the CONNECT unread, and its kernel's reset may overtake the alert (RFC 8446, 6.2).
        reset = "the connection was lost: [Errno 104] Connection reset by peer"
        told = "The primary's log may say why; it may {} (client_certificate_file)"
        overtaken = version == "TLSv1.3"
        asked = (
            f"{named}it asks for a client certificate, and the link has none",
            "Set client_certificate_file and client_key_file of the link",
        )
        refused = (
            f"{named}it refused the handshake: no common cipher, or no client certificate that it accepts",
            "Set client_certificate_file and client_key_file if it asks for them; the primary's log says why",
        )
        assert await failure(port, **known) in (
            {asked, (reset, told.format("want a client certificate"))} if overtaken else {refused}
        )
        unknown = (
            f"{named}it refuses the client certificate of the link: it does not know who signed it",
            "Renew client_certificate_file, or let the primary accept its CA; the primary's log says more",
        )
        assert await failure(port, **known, **showing(stranger)) in (
            {unknown, (reset, told.format("not accept the client certificate"))} if overtaken else {unknown}
        )


@pytest.mark.mosquitto
async def test_a_version_that_is_too_old_is_told(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tls_min_version` is obeyed; the hint says what else would do."""
    (tmp_path / "openssl.cnf").write_text(OLD)
    monkeypatch.setenv("OPENSSL_CONF", str(tmp_path / "openssl.cnf"))
    with mosquitto_with_tls(authority) as (_, port):
        monkeypatch.delenv("OPENSSL_CONF")
        async with live(port, ca_file=authority.certificate):
            pass
        assert await failure(port, ca_file=authority.certificate, tls_min_version="1.3") == (
            f"no TLS with mqtts://127.0.0.1:{port}: it speaks no version of TLS that the link accepts, which is 1.3"
            " or later",
            'Let the primary speak TLS 1.3, or set tls_min_version = "1.2" for the link',
        )


@pytest.mark.mosquitto
async def test_the_wrong_port_is_told(authority: Authority) -> None:
    """TLS spoken to a plain listener, and MQTT to one with TLS: Mosquitto only closes either."""
    with mosquitto_with_tls(authority) as (mosquitto, port):
        assert await failure(mosquitto.port, ca_file=authority.certificate) == (
            f"no TLS with mqtts://127.0.0.1:{mosquitto.port}: the connection was closed in the handshake",
            "Check that the port is that of a listener with TLS. If it wants a certificate, set "
            "client_certificate_file and client_key_file; else the primary's log says why",
        )
        told, hint = await failure(port, **at(port, scheme="mqtt"))
        assert told.startswith("the connection was lost: ")
        assert hint == (
            "The primary's log may say why; check that the address is that of its MQTT listener, and write mqtts:// "
            "if that has TLS"
        )


@pytest.mark.parametrize(
    ("answer", "scheme", "told", "hint"),
    [
        (
            b"\x15\x03\x01\x00\x02\x02\x46",
            "mqtt",
            "the server at {} speaks TLS, not MQTT",
            "Write mqtts:// in primary",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "mqtt",
            "the server at {} speaks HTTP, not MQTT",
            "Write the port of its MQTT listener; or ws:// with its path, if it serves MQTT over WebSocket",
        ),
        (
            b"\x20\x03\x00\x84\x00",
            "mqtts",
            "no TLS with {}: the server there does not speak TLS",
            "Write the port of the primary's listener with TLS, usually 8883; or mqtt:// if that has none",
        ),
        (
            b"",
            "mqtts",
            "no TLS with {}: there was no answer to the handshake within 1 s",
            "Check that the port is that of a listener with TLS",
        ),
    ],
)
async def test_a_listener_that_speaks_something_else_is_told(answer: bytes, scheme: str, told: str, hint: str) -> None:
    """By its first bytes, or by its silence."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        seen = await failure(port, **at(port, scheme=scheme), connect_timeout_s=1.0 if not answer else 30.0)
        assert seen == (told.format(f"{scheme}://127.0.0.1:{port}"), hint)


@pytest.mark.mosquitto
async def test_renewed_files_are_used_at_the_next_connection(authority: Authority, tmp_path: Path) -> None:
    """The primary shows one of a new CA, the link one of a later date; the session goes on."""
    ours = tmp_path / "ours.pem"
    shutil.copy(authority.certificate, ours)
    with mosquitto_with_tls(authority, "require_certificate true") as (mosquitto, port):
        async with Proxy(port) as proxy, live(proxy.port, ca_file=ours, **showing(authority)) as link:
            before_s = link.status.client_certificate_expires_s
            authority.issue("client", subject="/CN=edge-1", valid=(-HOUR, 300 * DAY))
            (tmp_path / "next").mkdir()
            new = Authority(tmp_path / "next", name="next")
            for path in new.issue("server"):
                shutil.copy(path, tmp_path / path.name)
            shutil.copy(new.certificate, ours)
            assert mosquitto.process is not None
            mosquitto.process.send_signal(signal.SIGHUP)  # it reads its certificate again, but not its CA
            await asyncio.to_thread(_wait_for_certificate, port, new)
            proxy.cut()
            await link.wait(lambda: link.status.counters.reconnects_total == 1 and link.status.state is LinkState.LIVE)
            assert link.status.counters.epochs_total == 1
            after_s = link.status.client_certificate_expires_s
            assert before_s is not None
            assert after_s is not None
            assert after_s - before_s > 200 * DAY.total_seconds()


def _wait_for_certificate(port: int, authority: Authority) -> None:
    """Wait until a server shows a certificate of an authority."""
    for _ in range(500):
        try:
            with socket.create_connection(("127.0.0.1", port)) as plain:
                client_context(authority).wrap_socket(plain, server_hostname="localhost").close()
                return
        except ssl.SSLError:
            pass
    raise AssertionError("the server does not show its new certificate")


@pytest.mark.mosquitto
async def test_a_connection_that_is_cut_goes_on(authority: Authority) -> None:
    """Through a proxy that cuts in the middle of a snapshot, and later of a handshake."""
    with mosquitto_with_tls(authority) as (mosquitto, port):
        with publisher(mosquitto.port) as client:
            publish_all(client, [(f"plant/{number}", bytes(1000)) for number in range(1, 3000)])
        async with Proxy(port) as proxy:
            config = config_for(0, **at(proxy.port), ca_file=authority.certificate)
            async with running(config) as link:
                await link.wait(lambda: link.status.counters.received_total > 0)
                proxy.cut()
                await link.wait(lambda: link.status.ready)
                proxy.pause()
                proxy.cut()
                await link.wait(lambda: proxy.connections_total >= 3)
                proxy.cut()
                proxy.resume()
                await link.wait(lambda: link.status.ready and link.status.counters.reconnects_total >= 2)
                assert len(link.values()) == 2999


@pytest.mark.mosquitto
async def test_a_primary_that_spoke_tls_is_not_told_to_do_so(authority: Authority) -> None:
    """A handshake without an answer is a frozen primary then, and not a wrong port."""
    with mosquitto_with_tls(authority) as (mosquitto, port):
        async with live(port, ca_file=authority.certificate, connect_timeout_s=0.3, retry_max_s=0.1) as link:
            mosquitto.stop()
            with socket.create_server(("127.0.0.1", port)):
                await link.wait(lambda: "accepted this link before" in (link.status.last_error_hint or ""))
                assert "no answer to the handshake" in (link.status.last_error or "")


async def test_addresses_of_several_schemes(authority: Authority) -> None:
    """A link fails over from TLS to TCP, and goes back to TLS when that answers; the session stays."""
    with mosquitto_with_tls(authority) as (mosquitto, port):
        async with Proxy(port) as secure, Proxy(mosquitto.port) as plain:
            addresses = (Address("mqtts", "localhost", secure.port), Address("mqtt", "127.0.0.1", plain.port))
            config = config_for(0, primaries=addresses, ca_file=authority.certificate)
            async with running(config) as link:
                await link.wait_state(LinkState.LIVE)
                assert (link.status.primary, expiry_known(link)) == (str(addresses[0]), True)
                secure.accepting = False
                secure.cut()
                await link.wait(lambda: link.status.primary == str(addresses[1]) and link.status.ready)
                assert not expiry_known(link)
                secure.accepting = True
                await link.wait(lambda: link.status.primary == str(addresses[0]) and link.status.ready)
                assert link.status.counters.epochs_total == 1


@pytest.mark.mosquitto
async def test_a_certificate_that_ends_soon_is_warned_of(authority: Authority) -> None:
    """At each connection, in the log; the status has the time."""
    authority.issue("client", subject="/CN=edge-1", valid=(-HOUR, 29 * DAY + HOUR))
    authority.issue("server", valid=(-HOUR, 31 * DAY))
    lines: list[dict[str, object]] = []
    with mosquitto_with_tls(authority, "require_certificate true") as (_, port):
        config = config_for(0, **at(port), ca_file=authority.certificate, **showing(authority))
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            told = [line for line in lines if line["event"] == "certificate expires soon"]
            assert [(line["certificate"], line["days"]) for line in told] == [("client", 29)]


@pytest.mark.mosquitto
async def test_a_better_address_is_asked_over_tls(authority: Authority) -> None:
    """The probe verifies as the link does."""
    with mosquitto_with_tls(authority) as (_, port):
        address = Address("mqtts", "127.0.0.1", port)
        assert await probe.ask(address, config_for(0, ca_file=authority.certificate), node_id="edge-1") is not None
        assert await probe.ask(address, config_for(0), node_id="edge-1") is None


ASKS = "it asks for a client certificate, and the link has none"
REFUSES = "it refuses the client certificate of the link: {}"
NOT_TLS = "the server there does not speak TLS"
NO_VERSION = "it speaks no version of TLS that the link accepts, which is 1.{} or later"
CLOSED = "the connection was closed in the handshake"
SHOWS = {"client_certificate_file": Path("c.pem"), "client_key_file": Path("c.key")}


@pytest.mark.parametrize(
    ("error", "keys", "problem", "hint"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", {}, ASKS, "Set client_certificate_file and"),
        ("TLSV1_ALERT_UNKNOWN_CA", {}, ASKS, "Set client_certificate_file and"),
        ("TLSV1_ALERT_UNKNOWN_CA", SHOWS, REFUSES.format("it does not know who signed it"), "Renew client_cert"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", SHOWS, REFUSES.format("bad certificate"), "Renew client_cert"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", SHOWS, REFUSES.format("expired"), "Renew client_cert"),
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", SHOWS, REFUSES.format("revoked"), "Renew client_cert"),
        (
            "SSLV3_ALERT_HANDSHAKE_FAILURE",
            {},
            "it refused the handshake: no common cipher, or no client certificate that it accepts",
            "Set client_certificate_file and client_key_file if it asks for them",
        ),
        ("TLSV1_ALERT_PROTOCOL_VERSION", {}, NO_VERSION.format(2), "Let the primary speak TLS 1.2 or 1.3"),
        ("UNSUPPORTED_PROTOCOL", {"tls_min_version": "1.3"}, NO_VERSION.format(3), "Let the primary speak TLS 1.3, or"),
        ("WRONG_VERSION_NUMBER", {}, NOT_TLS, "Write the port of the primary's listener with TLS"),
        (
            "TLSV1_UNRECOGNIZED_NAME",
            {},
            "it has no certificate for the name broker",
            "Write the primary's own host name in primary",
        ),
        ("TLSV1_ALERT_INTERNAL_ERROR", {}, "tlsv1 alert internal error", "The primary's log may say why"),
        (ssl.SSLEOFError(8, "EOF occurred"), {}, CLOSED, "Check that the port is that of a listener with TLS"),
        (ConnectionResetError(104, "reset"), {}, CLOSED, "Check that the port is that of a listener with TLS"),
        (OSError(5, "Input/output error"), {}, "[Errno 5] Input/output error", "The primary's log may say why"),
    ],
)
def test_each_failure_has_its_text(error: str | Exception, keys: dict[str, Any], problem: str, hint: str) -> None:
    """What OpenSSL calls it, in an operator's words, with what to do."""
    if isinstance(error, str):
        reason, error = error, ssl.SSLError(1, "[SSL] (_ssl.c:1006)")
        error.reason = reason
    address = Address("mqtts", "broker", 8883)
    tls = LinkTls(
        context=ssl.create_default_context(),
        server_hostname="broker",
        config=config_for(0, **keys),
        client_expires_s=None,
    )
    told = tls.failure(error, address)
    assert str(told).startswith(f"no TLS with mqtts://broker:8883: {problem}. {hint}")


async def test_files_that_cannot_be_used_are_told(authority: Authority, tmp_path: Path) -> None:
    """Each with its key, at each connection; nothing is sent then."""
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "locked.key").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjBOtmG1JuMkgICCAAw\n"
        "-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    authority.issue("other")
    address = Address("mqtts", "127.0.0.1", 1)
    encrypted = _encrypted(tmp_path / "client.key")
    for keys, problem in (
        ({"ca_file": tmp_path / "none"}, "cannot read its ca_file, {}/none: no such file or directory"),
        ({"ca_file": tmp_path / "empty.pem"}, "{}/empty.pem has no certificates in PEM"),
        (
            {**showing(authority), "client_certificate_file": tmp_path / "none"},
            "cannot read its client_certificate_file, {}/none: no such file or directory",
        ),
        (
            {**showing(authority), "client_key_file": tmp_path / "other.key"},
            "the key in {0}/other.key does not belong to the certificate in {0}/client.pem",
        ),
        (
            {**showing(authority), "client_key_file": encrypted},
            "the key in {}/encrypted.key is encrypted; it must have no password",
        ),
        (
            {**showing(authority), "client_certificate_file": tmp_path / "empty.pem"},
            "{0}/empty.pem and {0}/client.key are not a certificate and its key in PEM",
        ),
    ):
        with pytest.raises(TlsFailed) as caught:
            load_tls(config_for(0, **keys), address)
        assert caught.value.message == f"no TLS with {address}: {problem.format(tmp_path)}"
        assert caught.value.hint.startswith("Correct the file, or c")


def _encrypted(key: Path) -> Path:
    """Return the path of a copy of a key that is encrypted."""
    path = key.with_name("encrypted.key")
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", str(key), "-out", str(path), "-passout", "pass:secret"], check=True
    )
    return path


@pytest.mark.parametrize("loop", ["cancel", "end"])
async def test_a_handshake_that_is_given_up_leaves_nothing(authority: Authority, loop: str) -> None:
    """Cancelled in the middle, or at its end: the peer sees the connection close."""
    closed, greeted = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.set()
        while await reader.read(1000):
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        address = Address("mqtts", "127.0.0.1", server.sockets[0].getsockname()[1])
        connection = LinkConnection(on_data=lambda data: None, on_closed=lambda: None, read_ahead_bytes_max=1)
        tls = load_tls(config_for(0, ca_file=authority.certificate), address)
        assert isinstance(tls, LinkTls)
        timeout_s = 1.0 if loop == "end" else 60.0
        attempt = asyncio.create_task(
            connect(connection, address, receive_buffer_bytes=1 << 16, timeout_s=timeout_s, tls=tls)
        )
        await greeted.wait()
        if loop == "cancel":
            attempt.cancel()
        await asyncio.wait([attempt])
        assert attempt.cancelled() is (loop == "cancel")
        assert attempt.cancelled() or isinstance(attempt.exception(), TlsFailed)
        await connection.close()
        await closed.wait()
