"""Servers that measurements and tests start."""

from __future__ import annotations

import socket
from pathlib import Path

from bench.processes import Node

LISTENERS = 400
"""So many that they do not all open in one turn."""


def test_a_started_node_has_opened_all_listeners(tmp_path: Path) -> None:
    """A node that `start` returned accepts at each of its addresses, not only at the first."""
    paths = [tmp_path / str(number) for number in range(LISTENERS)]
    listeners = "".join(f'[[server.listener]]\naddress = "unix://{path}"\n' for path in paths)
    with Node(tmp_path, role="primary", name="hub", settings=listeners, log=False):
        for path in paths:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
