"""Tests of `fanout.access.authorization`: rules and hook together, and what is replaced meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from structlog.testing import CapturingLogger

from fanout.access.authorization import Access
from fanout.access.gate import Gate
from fanout.access.identity import Identity, Means
from fanout.access.rules import Denied
from fanout.config.access import AccessConfig, HookAction, HookConfig, RuleSection
from fanout.errors import ProtocolError
from tests.access.pieces import ManualClock, as_logger
from tests.access.service import Service, open_service
from tests.support.waiting import wait_until

RULES = (RuleSection(filter="plant/secret", deny="all"), RuleSection(filter="plant/#", allow="all"))


@contextlib.asynccontextmanager
async def open_gate(config: AccessConfig) -> AsyncIterator[Gate]:
    """Give a gate without password file that is closed afterwards."""
    gate = Gate(config, passwords=None, monotonic=ManualClock(), logger=as_logger(CapturingLogger()))
    try:
        yield gate
    finally:
        await gate.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Return a service that allows everything."""
    async with open_service() as service:
        yield service


def access_of(gate: Gate, *, superuser: bool = False) -> Access:
    """Return what alice may."""
    identity = Identity(client_id="s1", user="alice", address="10.0.0.7", means=Means.HOOK, superuser=superuser)
    return gate.authorize(identity)


def hook(service: Service, *actions: HookAction, remember_s: float = 30) -> HookConfig:
    """Return a hook that is asked for `actions`."""
    return HookConfig(url=service.url, actions=actions, remember_s=remember_s)


async def decision(verdict: bool | asyncio.Future[bool]) -> bool:
    """Return a decision, now or later."""
    return verdict if isinstance(verdict, bool) else await verdict


async def test_without_rules_and_hook_everything_is_allowed_at_once() -> None:
    """The server need not ask for each topic."""
    async with open_gate(AccessConfig()) as gate:
        access = access_of(gate)
        assert access.may_publish_all
        assert access.may_publish(b"any") is True
        assert access.may_subscribe(b"#") is True


async def test_rules_decide_at_once() -> None:
    """Without a hook no decision is a future."""
    async with open_gate(AccessConfig(rules=RULES)) as gate:
        access = access_of(gate)
        assert not access.may_publish_all
        assert access.may_publish(b"plant/a") is True
        assert access.may_publish(b"plant/secret") is False
        assert access.may_subscribe(b"plant/+") is False
        assert access.may_subscribe(b"plant/a/#") is True
        assert access.explain(b"plant/+") == Denied("plant/secret", 0)
        assert access.explain(b"plant/a/#") is None
        with pytest.raises(ProtocolError):
            access.may_subscribe(b"$share/g")


async def test_other_rules_hold_from_the_next_decision_on() -> None:
    """What is kept with a session needs no renewal, and what was remembered is forgotten."""
    async with open_gate(AccessConfig(rules=RULES)) as gate:
        access = access_of(gate)
        assert access.may_publish(b"plant/a") is True
        assert access.may_subscribe(b"plant/b") is True
        assert access.lost([b"plant/b", b"plant/c/#"]) == []
        gate.replace(AccessConfig(rules=(RuleSection(filter="plant/b", allow="read"),)), passwords=None)
        assert access.may_publish(b"plant/a") is False
        assert access.may_subscribe(b"plant/b") is True
        assert access.lost([b"plant/b", b"plant/c/#", b"$share/g/plant/+"]) == [b"plant/c/#", b"$share/g/plant/+"]
        gate.replace(AccessConfig(), passwords=None)
        assert access.may_publish_all
        assert access.lost([b"#"]) == []


async def test_a_superuser_may_do_everything(service: Service) -> None:
    """Whatever the rules say, and without asking the hook."""
    config = AccessConfig(rules=RULES, http=hook(service, "connect", "subscribe", "publish"))
    async with open_gate(config) as gate:
        access = access_of(gate, superuser=True)
        assert access.may_publish_all
        assert access.may_publish(b"plant/secret") is True
        assert access.may_subscribe(b"#") is True
        assert access.explain(b"#") is None
        assert access.lost([b"#"]) == []
    assert service.asked == []


async def test_the_hook_must_allow_what_the_rules_allow(service: Service) -> None:
    """It is asked with the names and the topic; its answer is remembered, so that the next one comes at once."""
    async with open_gate(AccessConfig(rules=RULES, http=hook(service, "subscribe", "publish"))) as gate:
        access = access_of(gate)
        assert not access.may_publish_all
        first = access.may_publish(b"plant/a")
        assert isinstance(first, asyncio.Future)
        assert await first is True
        assert access.may_publish(b"plant/a") is True
        service.answer = {"allow": False}
        assert await decision(access.may_publish(b"plant/b")) is False
        assert access.may_publish(b"plant/b") is False
        assert await decision(access.may_subscribe(b"$share/g/plant/c/+")) is False
    names = {"client_id": "s1", "username": "alice", "address": "10.0.0.7"}
    assert service.asked == [
        {"action": "publish", **names, "topic": "plant/a"},
        {"action": "publish", **names, "topic": "plant/b"},
        {"action": "subscribe", **names, "topic": "plant/c/+"},
    ]


async def test_the_hook_is_not_asked_for_what_the_rules_deny(service: Service) -> None:
    """It can only take away."""
    async with open_gate(AccessConfig(rules=RULES, http=hook(service, "subscribe", "publish"))) as gate:
        access = access_of(gate)
        assert access.may_publish(b"plant/secret") is False
        assert access.may_subscribe(b"#") is False
    assert service.asked == []


async def test_the_hook_is_asked_only_for_its_actions(service: Service) -> None:
    """Here for subscriptions."""
    async with open_gate(AccessConfig(http=hook(service, "subscribe"))) as gate:
        access = access_of(gate)
        assert access.may_publish_all
        assert access.may_publish(b"a") is True
        assert await decision(access.may_subscribe(b"a/#")) is True
    assert [question["action"] for question in service.asked] == ["subscribe"]


async def test_a_hook_that_fails_denies(service: Service) -> None:
    """Every decision ends, and ends with no."""
    service.status = 500
    async with open_gate(AccessConfig(http=hook(service, "subscribe", "publish"))) as gate:
        access = access_of(gate)
        assert await decision(access.may_publish(b"a")) is False
        assert await decision(access.may_subscribe(b"a")) is False


async def test_a_question_dropped_at_the_end_is_a_no(service: Service) -> None:
    """The decision is not cancelled, and whoever waits for it goes on."""
    service.open.clear()
    async with open_gate(AccessConfig(http=hook(service, "publish"))) as gate:
        verdicts = [access_of(gate).may_publish(b"a") for _ in range(2)]
        abandoned = access_of(gate).may_publish(b"a")
        assert isinstance(abandoned, asyncio.Future)
        abandoned.cancel()
        await wait_until(lambda: len(service.asked) == 1)
    assert [await decision(verdict) for verdict in verdicts] == [False, False]


async def test_a_defect_of_the_hook_refuses(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for the decision gets it, and the defect is reported."""

    async def fail(content: bytes) -> bytes:
        raise ZeroDivisionError

    async with open_gate(AccessConfig(http=hook(service, "publish"))) as gate:
        monkeypatch.setattr(gate.hook, "_post", fail)
        async with asyncio.timeout(30):
            assert not await decision(access_of(gate).may_publish(b"a"))
    assert "ZeroDivisionError" in caplog.text
