"""Servers that measurements and tests start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bench import processes
from bench.processes import Node, free_port, free_ports

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


def test_no_two_processes_of_tests_choose_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of them twice before long, also where adjacent ports are asked for: a server binds them later."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "5")
    chosen: list[int] = []
    for worker in range(5):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        monkeypatch.setattr(processes, "_ports", processes._ports_in_turn())
        for _ in range(50):
            four = free_ports(4)
            assert len(four) == 4
            chosen += [*four, free_port()]
    assert len(set(chosen)) == len(chosen) == 5 * 50 * 5
