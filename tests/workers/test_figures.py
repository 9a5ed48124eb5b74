"""The figures of several workers as one."""

from __future__ import annotations

import dataclasses

from fanout.access.gate import AccessStats
from fanout.server.base.counters import ServerStats
from fanout.workers.figures import add_up, totals_of

NONE = add_up(ServerStats, ())


def test_nothing_adds_up_to_zeros() -> None:
    """Every figure is there before anybody has told one."""
    assert {value for value in dataclasses.asdict(NONE).values() if not isinstance(value, dict)} == {0}
    assert NONE.dropped_total == {}


def test_figures_add_up_by_name() -> None:
    """Numbers are added, and so are numbers by reason, also where only one worker knows the reason."""
    one = dataclasses.replace(NONE, connections=3, dropped_total={"expired": 1, "refused": 2})
    other = dataclasses.replace(NONE, connections=4, dropped_total={"expired": 10, "queue_full": 5})
    total = add_up(ServerStats, (one, other))
    assert total.connections == 7
    assert total.dropped_total == {"expired": 11, "refused": 2, "queue_full": 5}


def test_rules_and_users_are_those_of_each_worker() -> None:
    """All of them have the same rules and users."""
    one = dataclasses.replace(add_up(AccessStats, ()), rules=3, users=5, decisions=7)
    total = add_up(AccessStats, (one, one))
    assert (total.rules, total.users, total.decisions) == (3, 5, 14)


def test_totals_outlive_a_process() -> None:
    """What is so now goes with it, what was counted stays."""
    stats = dataclasses.replace(NONE, connections=3, deliveries_total=9, dropped_total={"expired": 1})
    left = totals_of(stats)
    assert (left.connections, left.deliveries_total, left.dropped_total) == (0, 9, {"expired": 1})
