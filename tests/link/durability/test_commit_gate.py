"""What a link may not write before its values are on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fanout.link.durability.commit_gate import CommitGate
from fanout.link.durability.session_codec import find_resumption
from fanout.link.model.events import Applied, HeartbeatReturned, SessionSeen
from fanout.link.model.evidence import Order
from fanout.link.model.resumption import StoredSession
from fanout.link.model.states import LinkState
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase
from tests.link.fake_primary import FakePrimary, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import Running, config_for, running

SESSION = StoredSession(
    epoch=7,
    evidence=(None,),
    sentinel=None,
    order=Order.NONE,
    why_unordered="",
    control_permitted=None,
    session_expiry_s=300,
)


class Disk:
    """A store that commits when told to."""

    def __init__(self) -> None:
        self.puts: list[tuple[Sequence[Changes], bytes | None]] = []
        self.waiting: list[Callable[[], None]] = []

    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Callable[[], bytes] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        assert store == "plant"
        self.puts.append((changes, None if session is None else session()))
        if done is not None:
            self.waiting.append(done)

    def commit(self) -> None:
        """Commit the oldest."""
        self.waiting.pop(0)()


def pieces() -> tuple[Disk, CommitGate, list[bytes]]:
    """Return a disk, what keeps a link's values there, and what was written to its primary."""
    disk, written = Disk(), list[bytes]()
    commit_gate = CommitGate(disk, make_config(), node_id="edge-1")
    commit_gate.connected(written.append)
    return disk, commit_gate, written


def applied() -> Applied:
    """Return a batch that sets one value."""
    changes = Replica().apply([(b"plant/a", b"1", 1, True, b"", 1, 0, 0, None)], phase=Phase.LIVE)
    return Applied(changes, b"PUBACK", 7)


def test_nothing_is_held_without_reason() -> None:
    """With everything on disk, what is written is written."""
    disk, commit_gate, written = pieces()
    commit_gate.write(b"CONNECT")
    commit_gate.store((), None, now_ns=1)
    commit_gate.write(b"PINGREQ")
    assert written == [b"CONNECT", b"PINGREQ"]
    assert disk.puts == []


def test_acknowledgements_wait_for_what_they_acknowledge() -> None:
    """They leave in order, each with the transaction of its own batch."""
    disk, commit_gate, written = pieces()
    first, second = applied(), applied()
    commit_gate.store([first], None, now_ns=1)
    commit_gate.acknowledge(b"1")
    commit_gate.store([second], None, now_ns=2)
    commit_gate.acknowledge(b"2")
    commit_gate.write(b"PINGREQ")
    assert written == [b"PINGREQ"], "what acknowledges nothing does not wait for values"
    assert [list(changes) for changes, _ in disk.puts] == [[first.changes], [second.changes]]
    disk.commit()
    assert written == [b"PINGREQ", b"1"]
    disk.commit()
    commit_gate.acknowledge(b"3")
    assert written == [b"PINGREQ", b"1", b"2", b"3"]


def test_everything_waits_for_what_the_session_has_become() -> None:
    """PUBCOMP, or a PUBLISH at QoS 2, must not leave before its Packet Identifier is on disk."""
    disk, commit_gate, written = pieces()
    commit_gate.store([applied()], None, now_ns=1)
    commit_gate.acknowledge(b"PUBREC")
    commit_gate.store((), SESSION, now_ns=2)
    commit_gate.write(b"PUBCOMP")
    commit_gate.store([applied(), HeartbeatReturned(5)], SESSION, now_ns=3)
    commit_gate.acknowledge(b"PUBACK")
    commit_gate.write(b"PUBLISH")
    disk.commit()
    assert written == [b"PUBREC"]
    disk.commit()
    assert written == [b"PUBREC", b"PUBCOMP"]
    commit_gate.write(b"PINGREQ")
    disk.commit()
    assert written == [b"PUBREC", b"PUBCOMP", b"PINGREQ", b"PUBACKPUBLISH"]


def test_a_qos_2_message_binds_its_own_answers() -> None:
    """PUBREC waits for the message, PUBCOMP for its release; a heartbeat for neither before there is a release."""
    disk, commit_gate, written = pieces()
    commit_gate.store((), SESSION, now_ns=1)
    disk.commit()
    received = replace(SESSION, unreleased=frozenset({5}))
    commit_gate.store([applied()], received, now_ns=2)
    commit_gate.acknowledge(b"PUBREC")
    commit_gate.write(b"PINGREQ")
    assert written == [b"PINGREQ"]
    disk.commit()
    commit_gate.store((), SESSION, now_ns=3)
    commit_gate.write(b"PUBCOMP")
    assert written == [b"PINGREQ", b"PUBREC"]
    disk.commit()
    assert written == [b"PINGREQ", b"PUBREC", b"PUBCOMP"]


def test_a_session_is_kept_when_it_changes() -> None:
    """What it has become is committed with the batch; heartbeats say that it is there still."""
    disk, commit_gate, _ = pieces()
    commit_gate.store([applied()], SESSION, now_ns=1)
    commit_gate.store([applied()], SESSION, now_ns=2)
    commit_gate.store([HeartbeatReturned(5)], SESSION, now_ns=3)
    commit_gate.store([SessionSeen()], SESSION, now_ns=5)
    commit_gate.store((), None, now_ns=6)
    commit_gate.store([SessionSeen(), HeartbeatReturned(5)], None, now_ns=7)
    sessions = [session for _, session in disk.puts]
    assert sessions[0] is not None
    assert b'"seen_ns": 1' in sessions[0]
    assert sessions[1] is None
    assert sessions[2] is not None
    assert b'"seen_ns": 3' in sessions[2]
    assert sessions[3] is not None
    assert b'"seen_ns": 5' in sessions[3]
    assert sessions[4:] == [b""], "no session any more"


def is_live_with(disk: Disk, link: Running) -> bool:
    """Commit what waits, and say whether the link is live."""
    while disk.waiting:
        disk.commit()
    return link.status.state is LinkState.LIVE


async def test_a_session_that_was_quiet_is_seen_when_its_node_stops() -> None:
    """Its expiry counts from there for the next process, however long ago it changed."""
    disk = Disk()
    primary = FakePrimary(retained={b"plant/a": b"1"})
    async with FakeServer(primary) as server:
        config = config_for(server.port, heartbeat_s=0.0)
        async with running(config, store=disk) as link:
            # The last that a link without heartbeats asks for when it is live: then it is quiet.
            await link.wait(lambda: is_live_with(disk, link) and link.status.counted_outside is not None)
            changed = find_resumption(disk.puts[-1][1], config, node_id="edge-1")
            disk.puts.clear()
    (stopped,) = [find_resumption(data, config, node_id="edge-1") for _, data in disk.puts]
    assert changed is not None
    assert stopped is not None
    assert stopped.seen_ns > changed.seen_ns
    assert stopped.session == changed.session


def test_what_waits_goes_with_its_connection() -> None:
    """The next connection gets nothing of the former; what was handed over is committed all the same."""
    disk, commit_gate, written = pieces()
    commit_gate.store([applied()], SESSION, now_ns=1)
    commit_gate.acknowledge(b"old")
    commit_gate.disconnected()
    again: list[bytes] = []
    commit_gate.connected(again.append)
    commit_gate.write(b"CONNECT")
    disk.commit()
    assert written == []
    assert again == [b"CONNECT"]
    commit_gate.disconnected()
    commit_gate.write(b"nobody")
    assert again == [b"CONNECT"]
