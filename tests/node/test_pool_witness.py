"""What a node takes another member for, by what that says of itself and its heartbeats at the primary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fanout.node.pool.session_host import PoolWitness
from fanout.pool.convergence import Verdict
from fanout.pool.membership import Peer
from fanout.pool.pool_members import OtherMember, PoolMembers
from fanout.pool.sessions.ports import OtherMemberState
from tests.pool.test_member_facts import FACTS


@dataclass
class Pool:
    """A pool with one other member, as a node sees it."""

    state: str = "ready"
    sessions: int = 14
    reachable: bool = True
    now_s: float = 100.0
    heard_s: float = 99.0
    """When the member was heard last."""
    heartbeat_s: float = 99.0
    """When its newest heartbeat came through the primary."""

    def seen(self) -> OtherMemberState:
        """Return what the member is taken for."""
        facts = replace(FACTS, state=self.state, sessions=self.sessions)
        peer = Peer("127.0.0.1:9202", facts, self.heard_s)
        members: Any = SimpleNamespace(
            others=lambda: (OtherMember(peer, reachable=self.reachable, verdict=Verdict(None, None)),),
            silent_since=lambda peer: peer.heard_s,
            config=SimpleNamespace(dead_after_s=3.0),
        )
        link: Any = SimpleNamespace(heard_s=lambda node: self.heartbeat_s if node == FACTS.node else None)
        clock: Any = SimpleNamespace(monotonic=lambda: self.now_s)
        (state,) = PoolWitness(cast("PoolMembers", members), node="edge-1", links=[link], clock=clock).states()
        return state


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize(
    ("state", "sessions", "is_empty"),
    [("ready", 0, False), ("draining", 0, False), ("stopping", 1, False), ("stopping", 0, True)],
)
def test_a_member_that_stops_is_asked_until_it_has_no_session(
    state: str, sessions: int, is_empty: bool, reachable: bool
) -> None:
    """A busy one is silent now and then: its sessions are lost if others take it for gone."""
    seen = Pool(state=state, sessions=sessions, reachable=reachable).seen()
    assert (seen.is_empty, seen.is_silent, seen.is_dead) == (is_empty, not reachable, False)


@pytest.mark.parametrize(
    ("heard_s", "heartbeat_s", "is_dead"),
    [(97.5, 90.0, False), (90.0, 97.5, False), (96.5, 96.5, True)],
)
def test_a_member_is_dead_that_is_silent_everywhere(heard_s: float, heartbeat_s: float, is_dead: bool) -> None:
    """To the others and at the primary, for `dead_after_s`."""
    assert Pool(reachable=False, heard_s=heard_s, heartbeat_s=heartbeat_s).seen().is_dead is is_dead
    assert not Pool(reachable=True, heard_s=heard_s, heartbeat_s=heartbeat_s).seen().is_dead
