"""How many updates of the primary a link has not got."""

from __future__ import annotations

import pytest

from fanout.chain.stamp import Count
from fanout.link.liveness.item_lag import ItemLag
from fanout.link.protocol.control_channel import ControlChannel
from fanout.replica.update import Stamp


def item_lag(stamp: Stamp | None = None) -> tuple[ItemLag, ControlChannel]:
    """Return one whose first heartbeat, sent at time 0, came back at once with a stamp; the interval is 5 s."""
    control = ControlChannel("fanout/control", node_id="edge-1", link="plant", nonce=7, heartbeat_s=5.0)
    control.receive(control.send(0.0), now=0.0, stamp=stamp)
    return ItemLag(control), control


def test_what_the_primary_counted_beyond_what_came_is_behind() -> None:
    """Unknown until the primary is asked; what comes meanwhile is taken off, and the heartbeat behind it ends it."""
    one, control = item_lag(Stamp("hub", 1, 10, 0))
    one.note_count(Count("hub", 1, 9))
    payload = control.send(5.0)
    assert one.is_wanted(16.0)
    assert one.items(16.0, newest=None) is None
    one.note_count(Count("hub", 1, 510))
    assert one.items(16.0, newest=None) == 500
    assert one.items(16.0, newest=Stamp("hub", 1, 110, 0)) == 400
    assert one.items(16.0, newest=Stamp("elsewhere", 1, 400, 0)) == 500
    assert one.items(16.0, newest=Stamp("hub", 1, 510, 0)) is None
    control.receive(payload, now=16.1, stamp=Stamp("hub", 1, 300, 0))
    assert one.items(16.1, newest=None) == 210
    control.receive(control.send(17.0), now=17.0, stamp=Stamp("hub", 1, 600, 0))
    assert one.items(17.0, newest=None) == 0


@pytest.mark.parametrize("count", [Count("hub", 2, 900), Count("other", 1, 900)])
def test_another_count_says_nothing(count: Count) -> None:
    """Of a primary that was restarted, or another member of a cluster."""
    one, _ = item_lag(Stamp("hub", 1, 10, 0))
    one.note_count(count)
    assert one.items(16.0, newest=None) is None


def test_a_node_that_tells_no_count_is_not_asked() -> None:
    """It stamps what is published at it, not what it serves of others."""
    one, _ = item_lag(Stamp("a", 1, 10, 0))
    one.note_count(None)
    assert one.items(1.0, newest=None) == 0
    assert not one.is_wanted(100.0)
    assert one.items(100.0, newest=None) is None
