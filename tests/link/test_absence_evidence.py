"""Evidence that topics are deleted at the primary, while the selectors change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fanout.link.absence_evidence import AbsenceEvidence
from fanout.replica.store import Replica
from fanout.replica.update import Phase
from fanout.selection import Selector
from tests.link.harness import config_for, silent_logger
from tests.server.node_in_memory import update

A, B = Selector("a/#"), Selector("b/#")


async def test_evidence_that_is_sought_while_a_selector_goes_is_given_up(tmp_path: Path) -> None:
    """Positions of selectors are others after a reload: nothing is removed by the former ones."""
    password = tmp_path / "password"
    password.write_text("x\n")
    password.chmod(0o600)
    replica = Replica(selectors=(A, B))
    replica.apply([update(topic, b"1") for topic in (b"a/1", b"a/2", b"b/1")], phase=Phase.SNAPSHOT)
    replica.unconfirmed.note([b"a/1"], selector_index=0)

    async def ask(names: object, **_: object) -> Any:
        for pieces in (replica.drop_outside([A], now_ns=1), replica.select([A])):
            for _piece in pieces:
                pass
        return SimpleNamespace(values={"a/2": None}, absent=frozenset({"a/1"}))

    asking: Any = ask
    config = config_for(1, A, B, audit_username="u", audit_password_file=password)
    evidence = AbsenceEvidence(config, replica=replica, list_check=None, ask_by_name=asking, logger=silent_logger())
    assert [found async for found in evidence.absent()] == []
