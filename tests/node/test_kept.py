"""What an earlier process left on disk, put back into the replicas of a node."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from fanout.config import LinkConfig
from fanout.kept.store import KeptStore
from fanout.link.kept_session import KeptSession, Resumption, encode_session
from fanout.link.proof import Evidence
from fanout.link.rehearsal import Order
from fanout.node.kept import OWN_STORE, load_kept
from fanout.replica.store import Replica
from fanout.replica.update import Update, content_digest
from fanout.selection import Selector
from tests.kept.pieces import contents, opened, value
from tests.link.fake_primary import make_config
from tests.link.harness import logging_to

NOW_NS = 1_700_000_000_000_000_000
CONFIG = make_config(Selector("plant/#"), Selector("office/#", prefix="hq/"))


def prefixed(topic: bytes) -> Update:
    """Return a value of the selector with the prefix, whose digest is that of the topic at the primary."""
    update = value(b"hq/" + topic)
    return (*update[:7], content_digest(topic, update[1]), None)


def leave(path: Path, *, own: dict[bytes, Update | None] | None = None) -> None:
    """Leave a file with two values of each selector."""
    session = KeptSession(
        epoch=7,
        evidence=(Evidence.MARKER, Evidence.MARKER),
        fence=None,
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
    kept = KeptStore(path, sync="off", sync_interval_s=1, hold=lambda _: None, logger=logger)
    replica = Replica(selectors=config.selectors if config else (), topics_max=topics_max)
    own = Replica()
    links = [(config, replica)] if config else []
    resumptions = load_kept(kept, links, own=own, node_id="edge-1", now_ns=NOW_NS, logger=logger)
    kept.close(timeout_s=1)
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
    assert resumptions["plant"].session.surplus == {"office/#"}
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
