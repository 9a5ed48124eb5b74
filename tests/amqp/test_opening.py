"""Tests of the listener for AMQP where its library is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from fanout.amqp.opening import check_installed
from fanout.config import Address, ListenerConfig
from fanout.errors import ListenError


def test_a_listener_without_the_library_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a listener for AMQP needs it, and the error has the command."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed([ListenerConfig(address=Address("mqtt", "127.0.0.1", 1883))])
    with pytest.raises(ListenError) as caught:
        check_installed([ListenerConfig(address=Address("amqps", "127.0.0.1", 5671))])
    assert caught.value.message == "amqps://127.0.0.1:5671 needs a package that is not installed"
    assert "-m pip install" in caught.value.hint
    assert "[amqp]" in caught.value.hint
