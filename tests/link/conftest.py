"""Fixtures of the tests of links."""

from __future__ import annotations

import pytest


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every set for a large one, for which the subscription has QoS 0 meanwhile."""
    monkeypatch.setattr("fanout.link.snapshot.retained_set.KEEPS_QOS_TOPICS", -1)
