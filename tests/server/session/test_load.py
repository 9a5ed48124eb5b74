"""Tests of the sum over all sessions."""

from __future__ import annotations

from collections import Counter

import pytest

from fanout.mqtt.packets import Subscribe, Subscription
from fanout.mqtt.properties import Properties
from fanout.server.session.load import SessionLoad
from fanout.server.session.registry import SessionRegistry
from tests.server.session.test_registry import V5, make_registry


def registry_of(sessions: int) -> SessionRegistry:
    """Make sessions with a subscription each, which are away, and queue a message for each."""
    registry = make_registry(sessions_max=sessions)
    for number in range(sessions):
        session = registry.create(f"c-{number}", wire=V5)
        registry.subscribe(session, Subscribe(1, (Subscription(b"a", qos=1),), Properties()), bridge=False)
    return registry


def test_many_sessions_are_counted_in_steps_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step looks at a thousand sessions; two that ask at a time look at each session once, a third one at none."""
    looked_at: Counter[str] = Counter()
    of_step: list[int] = []
    plain = SessionLoad._sum

    def count(sessions, **more):  # type: ignore[no-untyped-def]  # as the method has it
        sessions = list(sessions)
        of_step.append(len(sessions))
        looked_at.update(session.client_id for session in sessions)
        return plain(sessions, **more)

    registry = registry_of(3500)
    monkeypatch.setattr(SessionLoad, "_sum", staticmethod(count))
    first, second = registry.load.count(), registry.load.count()
    for _ in range(20):
        next(first, None)
        next(second, None)
    assert (len(looked_at), set(looked_at.values()), max(of_step)) == (3500, {1}, 1000)
    assert list(registry.load.count()) == []
    assert registry.load.now().subscriptions == 3500


def test_few_sessions_are_counted_at_once() -> None:
    """So are many, before their first count."""
    registry = registry_of(1001)
    assert registry.load.now().subscriptions == 1001
    list(registry.load.count())
    registry.end(next(iter(registry)))
    assert registry.load.now().subscriptions == 1000
