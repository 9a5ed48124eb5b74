"""Tests of SASL and of the rules of `[access]` for JMS applications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import structlog
from pydantic import TypeAdapter

from fanout.access.gate import Gate
from fanout.access.passwords import PasswordFile
from fanout.config import Address, ListenerConfig
from fanout.config.access import AccessConfig
from tests.access.pieces import cheap_hash
from tests.amqp.conftest import StartNode, amqp_port
from tests.amqp.jms_peer import JmsPeer, text_message
from tests.support.certificates import Authority, client_context

RULES = [
    {"allow": "read", "filter": "plant/#"},
    {"allow": "all", "filter": "app/%c/#", "user": "alice"},
]


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """Give a gate with one user, and rules."""
    settings: dict[str, Any] = {"password_file": "users", "anonymous": "never", "rule": RULES}
    users = PasswordFile(users=MappingProxyType({"alice": cheap_hash(b"wonder")}))
    access = TypeAdapter(AccessConfig).validate_python(settings)
    gate = Gate(access, passwords=users, monotonic=lambda: 0.0, logger=structlog.get_logger())
    yield gate
    await gate.close()


async def test_the_rules_hold_for_a_user_with_a_password(start_node: StartNode, gate: Gate) -> None:
    """PLAIN checks the password; a rule with %c means the container id, for subscriptions too."""
    node = await start_node(gate=gate)
    peer = await JmsPeer.connect(amqp_port(node), "till", user="alice", password="wonder")
    node.set(b"plant/a", b"1")
    await (await peer.subscribe("plant/#", "allowed")).wait(1)
    refused = await peer.subscribe("secret/#", "refused")
    assert refused.error is not None
    assert refused.error.name == "amqp:unauthorized-access"
    own = await peer.subscribe("app/till/a", "own")
    assert await (await peer.producer("app/till/a", "p1")).send(text_message("mine")) is None
    await own.wait(1)
    denied = await (await peer.producer("plant/a", "p2")).send(text_message("x", retain=1))
    assert denied is not None
    assert denied.name == "amqp:unauthorized-access"
    await peer.close()


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", "wonder"), (None, None)])
async def test_others_are_refused_by_sasl(
    start_node: StartNode, gate: Gate, user: str | None, password: str | None
) -> None:
    """A wrong password, an unknown user, and a client without a user where none may be."""
    node = await start_node(gate=gate)
    peer = await JmsPeer.connect(amqp_port(node), user=user, password=password)
    assert peer.ended
    assert peer.sasl_failed
    assert not peer.is_open


async def test_a_certificate_is_a_user_with_external(start_node: StartNode, gate: Gate, tmp_path: Path) -> None:
    """Over TLS the Common Name of a verified certificate is the user, and its rules hold."""
    authority = Authority(tmp_path)
    authority.issue("server")
    authority.issue("alice")
    listener = ListenerConfig(
        address=Address("amqps", "127.0.0.1", 0),
        certificate_file=tmp_path / "server.pem",
        key_file=tmp_path / "server.key",
        client_ca_file=authority.certificate,
    )
    node = await start_node(gate=gate, listener_tables=(listener,), listen=())
    context = client_context(authority, tmp_path / "alice.pem", tmp_path / "alice.key")
    peer = await JmsPeer.connect(amqp_port(node), "till", mechanisms="EXTERNAL", tls=context)
    assert await (await peer.producer("app/till/a")).send(text_message("mine")) is None
    await peer.close()
