"""Members of these tests look at each other in every turn of the event loop."""

from __future__ import annotations

import pytest

from fanout.durable.copying import inheritance, pool_copies


@pytest.fixture(autouse=True)
def _looks_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pool_copies, inheritance):
        monkeypatch.setattr(module, "LOOK_S", 0.0)
