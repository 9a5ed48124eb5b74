"""The `$SYS` topics of a node."""

from __future__ import annotations

from typing import Any

from fanout import __version__
from fanout.node.sys_topics import LinkFigures, SysTopics
from tests.server.node_in_memory import NodeInMemory


def figures() -> dict[str, Any]:
    """Return the figures of a server that has done nothing."""
    return NodeInMemory().server.figures()


def test_values_are_retained() -> None:
    """Every topic has a retained value: those of the server, and state and readiness of each link."""
    topics = SysTopics()
    links = {"plant": LinkFigures("live", True, 0), "office": LinkFigures("down", False, None)}
    updates = topics.update(figures(), retained_topics=7, links=links, uptime_s=3, now_ns=1)
    values = {topic.decode(): update[1].decode() for topic, update in topics.replica.values.items()}
    assert {update[0].decode() for update in updates} == set(values)
    assert all(update[3] for update in updates)
    assert values["$SYS/broker/version"] == f"fanout version {__version__}"
    assert values["$SYS/broker/uptime"] == "3 seconds"
    assert values["$SYS/broker/retained messages/count"] == "7"
    assert (values["$SYS/fanout/plant/state"], values["$SYS/fanout/plant/ready"]) == ("live", "true")
    assert (values["$SYS/fanout/office/state"], values["$SYS/fanout/office/ready"]) == ("down", "false")


def test_clients_see_how_old_the_values_of_a_link_are() -> None:
    """In whole seconds, 0 while they are current; without values there is no such topic."""
    topics = SysTopics()
    name = b"$SYS/fanout/plant/stale_s"

    def told(stale_s: int | None) -> list[bytes]:
        links = {"plant": LinkFigures("stalled", False, stale_s)}
        updates = topics.update(figures(), retained_topics=7, links=links, uptime_s=3, now_ns=1)
        return [update[1] for update in updates if update[0] == name]

    assert [told(None), told(0), told(0), told(12), told(None), told(None)] == [[], [b"0"], [], [b"12"], [b""], []]
    assert name not in topics.replica.values


def test_only_changes_are_dispatched() -> None:
    """A value that is the same as before is not sent again."""
    topics = SysTopics()
    topics.update(figures(), retained_topics=7, links={}, uptime_s=3, now_ns=1)
    updates = topics.update(figures(), retained_topics=8, links={}, uptime_s=3, now_ns=2)
    assert [update[:2] for update in updates] == [(b"$SYS/broker/retained messages/count", b"8")]
