"""What an earlier process left on disk, put back into the replicas of a node."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fanout.config import LinkConfig
from fanout.link.durability.session_codec import encode_session
from fanout.link.link import Link
from fanout.link.model.evidence import Evidence, Order
from fanout.link.model.resumption import Resumption, StoredSession
from fanout.link.model.states import LinkState
from fanout.link.session.teardown import TOPICS_MAX
from fanout.node.disk.restore import OWN_STORE, restore_replicas
from fanout.replica.store import Replica
from fanout.replica.update import Update, content_digest
from fanout.selection import Selector
from fanout.storage import write_behind as module
from fanout.storage.write_behind import WriteBehindStore
from tests.link.fake_primary import FakePrimary, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, logging_to, running
from tests.storage.pieces import FailingDisk, contents, opened
from tests.support.updates import update as value
from tests.support.waiting import wait_until

NOW_NS = 1_700_000_000_000_000_000
CONFIG = make_config(Selector("plant/#"), Selector("office/#", prefix="hq/"))


def prefixed(topic: bytes) -> Update:
    """Return a value of the selector with the prefix, whose digest is that of the topic at the primary."""
    update = value(b"hq/" + topic)
    return (*update[:7], content_digest(topic, update[1]), None)


def leave(path: Path, *, own: dict[bytes, Update | None] | None = None) -> None:
    """Leave a file with two values of each selector."""
    session = StoredSession(
        epoch=7,
        evidence=(Evidence.MARKER, Evidence.MARKER),
        sentinel=None,
        order=Order.KNOWN,
        why_unordered="",
        control_permitted=True,
        session_expiry_s=300,
    )
    values: dict[bytes, Update | None] = {b"plant/%d" % n: value(b"plant/%d" % n) for n in range(2)}
    values |= {b"hq/office/%d" % n: prefixed(b"office/%d" % n) for n in range(2)}
    file = opened(path)
    data = encode_session(session, CONFIG, node_id="edge-1", seen_ns=1)
    file.commit({"plant": values, OWN_STORE: own or {}}, {"plant": data}, force=False)
    file.close()


def load(
    path: Path, config: LinkConfig | None = CONFIG, *, topics_max: int | None = None
) -> tuple[Replica, Replica, dict[str, Resumption], list[dict[str, object]]]:
    """Return the replicas of a link and of the node, what can be resumed, and the log lines."""
    lines: list[dict[str, object]] = []
    logger = logging_to(lines)
    storage = WriteBehindStore(path, sync="off", sync_interval_s=1, hold=lambda _: None, logger=logger)
    replica = Replica(selectors=config.selectors if config else (), topics_max=topics_max)
    own = Replica()
    links = [(config, replica)] if config else []
    resumptions = restore_replicas(storage, links, own=own, node_id="edge-1", now_ns=NOW_NS, logger=logger)
    storage.close(timeout_s=30)
    return replica, own, resumptions, lines


def test_values_and_session_are_back(tmp_path: Path) -> None:
    """The replica has every value, of the node's own topics as well, and the link its session."""
    leave(tmp_path / "r", own={b"mine": value(b"mine", b"x")})
    replica, own, resumptions, _ = load(tmp_path / "r")
    assert set(replica.values) == {b"plant/0", b"plant/1", b"hq/office/0", b"hq/office/1"}
    assert (replica.count(0), replica.count(1)) == (2, 2)
    assert set(own.values) == {b"mine"}
    assert resumptions["plant"].session.epoch == 7


def test_values_of_a_changed_selector_go(tmp_path: Path) -> None:
    """Only what a selector of now brought is loaded."""
    leave(tmp_path / "r")
    replica, _, resumptions, lines = load(tmp_path / "r", make_config(Selector("plant/#")))
    assert set(replica.values) == {b"plant/0", b"plant/1"}
    assert resumptions["plant"].session.stale_filters == {"office/#"}
    assert lines[0]["dropped"] == 2


def test_values_over_a_lower_limit_go(tmp_path: Path) -> None:
    """A limit that is lower now holds."""
    leave(tmp_path / "r")
    replica, _, _, lines = load(tmp_path / "r", topics_max=3)
    assert len(replica) == 3
    assert replica.refused_total == 1
    assert lines[0]["dropped"] == 1


def test_values_without_a_session_go(tmp_path: Path) -> None:
    """A link that is gone, or cannot resume, leaves nothing in the file; own values stay."""
    leave(tmp_path / "r", own={b"mine": value(b"mine")})
    replica, own, resumptions, _ = load(tmp_path / "r", replace(CONFIG, client_id="other"))
    assert (len(replica), resumptions) == (0, {})
    assert set(own.values) == {b"mine"}
    file = opened(tmp_path / "r")
    assert set(file.sessions()) == {OWN_STORE}
    assert contents(file, "plant") == {}
    file.close()
    leave(tmp_path / "r")
    assert load(tmp_path / "r", None)[2] == {}


def test_damage_in_the_history_of_messages_is_damage_too(tmp_path: Path) -> None:
    """Sessions that would miss messages are not restored, and values without them would come to them again."""
    leave(tmp_path / "r")
    database = sqlite3.connect(tmp_path / "r")
    database.execute("INSERT INTO history VALUES (7, x'0102')")
    database.commit()
    database.close()
    replica, _, resumptions, lines = load(tmp_path / "r")
    assert (len(replica), resumptions) == (0, {})
    assert "the history of messages" in str(lines[-1]["reason"])
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1


def test_a_value_that_was_not_written_is_damage(tmp_path: Path) -> None:
    """A digest that does not fit sets the file aside, and nothing of it is served."""
    leave(tmp_path / "r", own={b"mine": value(b"mine")})
    database = sqlite3.connect(tmp_path / "r")
    database.execute("UPDATE retained SET value = CAST(value || x'31' AS BLOB) WHERE topic = ?", (b"plant/1",))
    database.commit()
    database.close()
    replica, own, resumptions, lines = load(tmp_path / "r")
    assert (len(replica), len(own), resumptions) == (0, 0, {})
    assert "is not what was written" in str(lines[-1]["reason"])
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    assert load(tmp_path / "r")[2] == {}


async def test_a_tear_down_goes_no_faster_than_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk fails, no more waits for it than its mark and a piece; the rest goes when it is back."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "ROWS_HIGH", TOPICS_MAX)
    monkeypatch.setattr(module, "ROWS_LOW", 1)
    disk = FailingDisk(monkeypatch, broken=False)
    links: list[Link] = []

    def hold(held: bool) -> None:
        for each in links:
            each.hold(held)

    storage = WriteBehindStore(tmp_path / "r", sync="off", sync_interval_s=1, hold=hold, logger=logging_to([]))
    await asyncio.to_thread(storage.open, now_ns=1)
    storage.start()
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(5 * TOPICS_MAX)})
    async with FakeServer(primary) as server, running(config_for(server.port), store=storage) as link:
        links.append(link.link)
        await link.wait_state(LinkState.LIVE)
        committed = asyncio.Event()
        storage.put("plant", [], done=committed.set)  # after the session of the live link: CONNECT waits for that
        await asyncio.wait_for(committed.wait(), 20)
        disk.broken = True
        primary.has_session = False
        primary.retained.clear()
        server.cut()
        await link.wait(lambda: storage.waiting > TOPICS_MAX and storage.stats().alarm)
        for _ in range(20):
            await asyncio.sleep(0)
        assert storage.waiting == 2 * TOPICS_MAX
        assert link.status.state is LinkState.TEARING_DOWN
        disk.broken = False
        await link.wait_state(LinkState.LIVE)
        await wait_until(lambda: not storage.waiting)
    assert await asyncio.to_thread(storage.close, timeout_s=30)
