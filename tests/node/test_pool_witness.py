"""What a node takes another member for, by what that says of itself and its heartbeats at the primary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from fanout.config import PoolConfig
from fanout.durable.ownership.ports import OtherMemberState
from fanout.node.pool.session_host import PlaceNames, PoolWitness
from fanout.pool.membership import Peer
from fanout.pool.pool_members import PoolMembers
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
    own_s: float | None = 99.0
    """When the newest heartbeat of this node was sent that came back; None for none."""
    alone_s: float | None = None
    """When its process said last that sessions go on there without copies; None for never."""
    vouched_s: float = float("-inf")
    """When it was asked, and said that its copies here are right."""
    may_publish: bool = True
    """Whether the link may publish heartbeats."""

    def witness(self) -> PoolWitness:
        """Return what judges, and has looked for as long as it takes, with what it saw since."""
        facts = replace(FACTS, state=self.state, sessions=self.sessions)
        peer = Peer("127.0.0.1:9202", facts, self.heard_s, self.heard_s)
        members: Any = SimpleNamespace(
            membership=SimpleNamespace(others=lambda: (peer,), is_reachable=lambda peer, *, now_s: self.reachable),
            silent_since=lambda peer: peer.heard_s,
            config=SimpleNamespace(dead_after_s=3.0),
            config_digest=FACTS.config_digest,
            vouched_s=lambda instance: self.vouched_s,
        )
        link: Any = SimpleNamespace(
            cuts=SimpleNamespace(
                heard_s=lambda node: self.heartbeat_s if node == FACTS.node else None,
                said_alone_s=lambda instance: self.alone_s if instance == FACTS.instance else None,
            ),
            control=SimpleNamespace(returned_sent_s=self.own_s, may_be_open=self.may_publish),
        )
        now_s = 90.0
        clock: Any = SimpleNamespace(monotonic=lambda: now_s)
        witness = PoolWitness(cast("PoolMembers", members), links=[link], clock=clock)
        while now_s < self.now_s:
            now_s += 0.5
            witness.states()
        return witness

    def seen(self) -> OtherMemberState:
        """Return what the member is taken for."""
        (state,) = self.witness().states()
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
    """To this node and at the primary, for `dead_after_s`."""
    assert Pool(reachable=False, heard_s=heard_s, heartbeat_s=heartbeat_s).seen().is_dead is is_dead
    assert not Pool(reachable=True, heard_s=heard_s, heartbeat_s=heartbeat_s).seen().is_dead


@pytest.mark.parametrize(
    ("own_s", "may_publish", "is_dead", "is_isolated"),
    [(99.0, True, True, False), (96.0, True, False, True), (None, True, False, True), (None, False, True, True)],
)
def test_a_member_is_found_dead_by_a_node_that_the_primary_hears(
    own_s: float | None, may_publish: bool, is_dead: bool, is_isolated: bool
) -> None:
    """A node that hears nobody is isolated; where no link may publish heartbeats, silence alone decides."""
    pool = Pool(reachable=False, heard_s=95.0, heartbeat_s=95.0, own_s=own_s, may_publish=may_publish)
    assert pool.seen().is_dead is is_dead
    assert pool.witness().is_isolated is is_isolated
    assert pool.witness().isolated_after_s == 2.0


@pytest.mark.parametrize(
    ("alone_s", "vouched_s", "went_alone"),
    [(None, 90.0, False), (95.0, float("-inf"), True), (95.0, 94.0, True), (95.0, 96.0, False)],
)
def test_a_process_went_on_alone_until_it_is_asked_and_vouches(
    alone_s: float | None, vouched_s: float, went_alone: bool
) -> None:
    """By its word at the primary, and by its answer to a question that came after that."""
    witness = Pool(alone_s=alone_s, vouched_s=vouched_s).witness()
    assert witness.went_alone(FACTS.instance) is went_alone
    assert not witness.went_alone("0" * 16)


@pytest.mark.parametrize(
    ("own_s", "may_publish", "is_current"),
    [(99.0, True, True), (97.0, True, False), (None, True, False), (None, False, True)],
)
def test_a_node_is_current_once_a_later_heartbeat_of_its_own_is_back(
    own_s: float | None, may_publish: bool, is_current: bool
) -> None:
    """All that the primary sent before is in front of it; without heartbeats nothing shows that."""
    witness = Pool(own_s=own_s, may_publish=may_publish).witness()
    assert witness.is_current(98.0) is is_current
    assert witness.has_witness is may_publish


def test_a_new_member_waits_for_names_of_its_places() -> None:
    """Until the others have heard it on every link that may publish; at most for `dead_after_s`, and once only."""
    heard, now_s = {"others": False}, 10.0
    members: Any = SimpleNamespace(
        are_places_named=lambda links: heard["others"] and list(links) == ["a"],
        config=SimpleNamespace(dead_after_s=3.0),
    )
    links: Any = [
        SimpleNamespace(config=SimpleNamespace(name=name), control=SimpleNamespace(may_be_open=name == "a"))
        for name in ("a", "refused")
    ]
    clock: Any = SimpleNamespace(monotonic=lambda: now_s)
    first, second = (PlaceNames(members, links=links, clock=clock) for _ in range(2))
    assert not first.is_over()
    assert not second.is_over()
    now_s = 12.9
    assert not first.is_over()
    heard["others"] = True
    assert first.is_over()
    heard["others"] = False
    assert first.is_over()
    assert not second.is_over()
    now_s = 13.0
    assert second.is_over()


def test_places_are_not_named_before_the_members_are_known() -> None:
    """With `pool.dns` there is nobody to ask until the name is looked up."""
    pool = TypeAdapter(PoolConfig).validate_python({"dns": "members.example:9090"})
    clock: Any = SimpleNamespace(monotonic=lambda: 10.0, now_ns=lambda: 0)
    nothing: Any = None
    members = PoolMembers(
        pool,
        node="a",
        config_digest="0" * 16,
        token=None,
        tls=None,
        own_facts=nothing,
        cuts=nothing,
        clock=clock,
        logger=nothing,
    )
    links: Any = [SimpleNamespace(config=SimpleNamespace(name="l"), control=SimpleNamespace(may_be_open=True))]
    assert not PlaceNames(members, links=links, clock=clock).is_over()
