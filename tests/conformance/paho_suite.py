"""The tests of MQTT 5 that paho-mqtt brings in its source (tests/test_mqttv5.py), by the author of paho.mqtt.testing.

They are written for the test broker of paho.mqtt.testing, which they import; a node takes its place.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from bench.processes import free_port
from tests.conformance.broker import start

__all__ = ["run"]

SERVER = ["keep_alive_max_s = 60"]
"""`test_server_keep_alive` expects it."""
ACCESS = ['anonymous = "always"']
"""Nobody is refused a subscription: a rule that denies `test/nosubscribe`, as `test_subscribe_failure` wants it, would
refuse the subscriptions to `#` and `+/+` of other tests too: a node does not grant a part of a Topic Filter."""


def run(source: Path) -> int:
    """Run the tests and return an exit code.

    Args:
        source: The directory of paho-mqtt's source.
    """
    port = free_port()
    node = start(port, server=SERVER, access=ACCESS)
    try:
        _take_the_place_of_its_broker(port)
        suite = unittest.defaultTestLoader.loadTestsFromModule(_load(source / "tests" / "test_mqttv5.py"))
        result = unittest.TextTestRunner(verbosity=2, buffer=True).run(suite)
    finally:
        node.terminate()
        node.communicate()
    return 0 if result.wasSuccessful() else 1


def _take_the_place_of_its_broker(port: int) -> None:
    """Let `import mqtt.brokers` find what tells the port of the node."""
    brokers: Any = types.ModuleType("mqtt.brokers")
    brokers.run = lambda **_: None
    brokers.listeners = MagicMock()
    brokers.listeners.TCPListeners.server.socket.getsockname.return_value = ("localhost", port)
    package: Any = types.ModuleType("mqtt")
    package.brokers = brokers
    sys.modules |= {"mqtt": package, "mqtt.brokers": brokers}


def _load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
