"""Members of these tests look at each other in every turn of the event loop."""

from __future__ import annotations

import pytest

from fanout.durable.copying import inheritance, sent_copies


@pytest.fixture(autouse=True)
def _looks_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sent_copies, inheritance):
        monkeypatch.setattr(module, "_LOOK_S", 0.0)
