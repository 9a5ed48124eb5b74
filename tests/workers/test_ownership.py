"""Which worker serves a client, and its share of the limits."""

from __future__ import annotations

from collections import Counter

from fanout.config import IdentityConfig, NodeConfig, ServerConfig
from fanout.config.access import AccessConfig, HookConfig
from fanout.workers.ownership import new_client_id, owner_of, serving_worker_of, share_of


def test_clients_are_spread_and_stay() -> None:
    """The same Client Identifier always has the same worker, and many of them have all workers."""
    names = [f"client-{index}" for index in range(3000)]
    owners = Counter(owner_of(name, 3) for name in names)
    assert set(owners) == {0, 1, 2}
    assert min(owners.values()) > 900
    assert [owner_of(name, 3) for name in names] == [owner_of(name, 3) for name in names]


def test_clients_of_silent_workers_are_spread_over_the_others_and_nobody_else_moves() -> None:
    """Nor do they move themselves when a further worker falls silent; when all are, each has its own clients."""
    names = [f"client-{index}" for index in range(3000)]
    before = {name: serving_worker_of(name, 4, silent=frozenset()) for name in names}
    assert before == {name: owner_of(name, 4) for name in names}
    one = {name: serving_worker_of(name, 4, silent={2}) for name in names}
    assert {name for name in names if one[name] != before[name]} == {name for name in names if before[name] == 2}
    assert {one[name] for name in names if before[name] == 2} == {0, 1, 3}
    two = {name: serving_worker_of(name, 4, silent={2, 3}) for name in names}
    assert {name for name in names if two[name] != one[name]} == {name for name in names if one[name] == 3}
    assert {name: serving_worker_of(name, 4, silent={0, 1, 2, 3}) for name in names} == before


def test_assigned_client_identifiers_belong_to_the_worker() -> None:
    """The first one that does is taken."""
    names = iter(f"auto-{index}" for index in range(100))
    assert owner_of(new_client_id(lambda: next(names), number=3, workers=4), 4) == 3


def test_limits_of_the_node_are_shared_and_others_are_not() -> None:
    """Rounded up, so that no worker has none."""
    config = NodeConfig(
        node=IdentityConfig(id="n"),
        server=ServerConfig(workers=4, connections_max=10, sessions_max=3, subscriptions_max=7),
        access=AccessConfig(password_checks_max=2, http=HookConfig(url="http://127.0.0.1:1", requests_max=32)),
    )
    share = share_of(config)
    assert share.server is not None
    assert share.access.http is not None
    assert (share.server.connections_max, share.server.sessions_max, share.server.subscriptions_max) == (3, 1, 7)
    assert (share.access.password_checks_max, share.access.http.requests_max) == (1, 8)
    assert share.server.workers == 4
