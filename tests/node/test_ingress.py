"""What local clients publish: the node's own namespace, its stamps, and what is refused or forwarded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fanout.chain.manifest import MANIFEST_TOPIC
from fanout.chain.readiness_notice import READINESS_TOPIC
from fanout.chain.stamp import StampCount, encode_stamp
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.properties import split_publish_properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.ingress import Forward, LocalIngress
from fanout.replica.owners import RETAINED_TOPICS_KEY, RetainedOwners
from fanout.replica.store import Replica
from fanout.replica.update import ChangeKind, Changes, Phase, Stamp, content_digest
from fanout.selection import Selector
from fanout.server.base.ports import PendingVerdict, PublishVerdict

NOW_NS = 1_700_000_000_123_456_789
NODE_EPOCH = 1_699_999_999_000_000
EIGHT_BYTES, NINE_BYTES = b"\x03\x00\x05" + b"t" * 5, b"\x03\x00\x06" + b"t" * 6
SUCCESS, NOT_AUTHORIZED = ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED


def row(
    topic: bytes,
    payload: bytes = b"v",
    *,
    qos: int = 0,
    retain: bool = False,
    properties: bytes = b"",
    expiry_s: int | None = None,
) -> PublishRow:
    """Return a PUBLISH as the decoder gives it."""
    user_at = split_publish_properties(properties).user_at
    return (topic, payload, qos << 1 | retain, 7 if qos else 0, properties, expiry_s, user_at)


class Accepted:
    """Takes what the ingress lets in, and checks that the replica was first."""

    def __init__(self) -> None:
        self.batches: list[tuple[Changes, str | None]] = []
        self.rows: list[PublishRow] = []
        """Packets of the newest batch."""
        self.committed: PendingVerdict | None = None
        self.count = StampCount(node="hub", epoch=NODE_EPOCH)

    def __call__(self, changes: Changes, client_id: str | None, rows: Sequence[PublishRow]) -> PendingVerdict | None:
        self.batches.append((changes, client_id))
        self.rows = list(rows)
        return self.committed

    @property
    def topics(self) -> list[bytes]:
        """The topics of everything accepted, in order."""
        return [update[0] for changes, _ in self.batches for update in changes.updates]

    @property
    def stamps(self) -> list[Stamp | None]:
        """The stamps of everything accepted, in order."""
        return [update[8] for changes, _ in self.batches for update in changes.updates]


class ForwardStandIn:
    """Takes the place of `Link.forward`."""

    def __init__(self, verdict: PublishVerdict) -> None:
        self.verdict = verdict
        self.calls: list[tuple[PublishRow, bytes]] = []

    def __call__(self, row: PublishRow, *, prefix: bytes) -> PublishVerdict:
        self.calls.append((row, prefix))
        return self.verdict


def never(row: PublishRow, *, prefix: bytes) -> PublishVerdict:
    """Take the place of `Link.forward` where nothing may be forwarded."""
    raise AssertionError(f"forwarded {row}")


@pytest.fixture
def accepted() -> Accepted:
    """Return what takes the accepted updates."""
    return Accepted()


def ingress(
    accepted: Accepted,
    *selectors: tuple[Selector, Forward],
    topics_max: int | None = None,
    bytes_max: int | None = None,
    expiry_s: int = 0,
    publisher_stamps: bool = False,
    owners: RetainedOwners | None = None,
) -> LocalIngress:
    """Return the ingress of the node `hub`."""
    return LocalIngress(
        stamps=accepted.count,
        replica=Replica(topics_max=topics_max, bytes_max=bytes_max),
        selectors=selectors,
        control_prefixes=[b"fanout/control/"] if selectors else [],
        accept=accepted,
        expiry_s=expiry_s,
        publisher_stamps=publisher_stamps,
        owners=owners,
    )


def test_row_becomes_an_update(accepted: Accepted) -> None:
    """Topic, payload, QoS, RETAIN, properties, time, expiry, digest and stamp."""
    hub = ingress(accepted)
    published = row(b"t", b"payload", qos=2, retain=True, properties=b"\x01\x01", expiry_s=60)
    assert hub.publish("client", [published], NOW_NS) == [SUCCESS]
    ((changes, client_id),) = accepted.batches
    assert client_id == "client"
    assert changes.phase is Phase.LIVE
    assert changes.updates == [
        (
            b"t",
            b"payload",
            2,
            True,
            b"\x01\x01",
            NOW_NS,
            NOW_NS + 60_000_000_000,
            content_digest(b"t", b"payload"),
            Stamp("hub", NODE_EPOCH, 1, NOW_NS // 1000),
        )
    ]
    assert list(changes.kinds) == [ChangeKind.NEW]
    assert hub.replica.values[b"t"] is changes.updates[0]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_flags_are_read(accepted: Accepted, qos: int, retain: bool) -> None:
    """DUP and the Packet Identifier do not matter to what is published; QoS and RETAIN do."""
    published = (b"t", b"v", 8 | qos << 1 | retain, 9, b"", None, 0)
    ingress(accepted).publish("client", [published], NOW_NS)
    update = accepted.batches[0][0].updates[0]
    assert (update[2], update[3], update[6]) == (qos, retain, 0)


def test_batch_is_accepted_in_one_piece(accepted: Accepted) -> None:
    """A run of PUBLISH packets is one batch, in order, with one verdict for each."""
    hub = ingress(accepted)
    assert hub.publish("client", [row(b"a"), row(b"b"), row(b"a", b"w")], NOW_NS) == [SUCCESS] * 3
    assert len(accepted.batches) == 1
    assert accepted.topics == [b"a", b"b", b"a"]


def test_a_publishers_stamp_is_kept_unless_it_claims_to_be_this_nodes(accepted: Accepted) -> None:
    """It leaves the properties and takes no sequence; a claim to this node's count gets a stamp of that count."""
    hub = ingress(accepted, publisher_stamps=True)
    theirs = Stamp("machine-7", 3, 5, 1_600_000_000_000_001)
    run = [
        row(b"a", properties=b"\x01\x01" + encode_stamp(theirs)),
        row(b"b", properties=encode_stamp(theirs._replace(primary="hub"))),
        row(b"c", properties=encode_stamp(theirs) + b"\x01\x01"),  # not the last property: one like others
        row(b"d"),
    ]
    assert hub.publish("client", run, NOW_NS) == [SUCCESS] * 4
    own = Stamp("hub", NODE_EPOCH, 1, NOW_NS // 1000)
    assert accepted.stamps == [theirs, own, own._replace(sequence=2), own._replace(sequence=3)]
    assert [update[4] for changes, _ in accepted.batches for update in changes.updates] == [
        b"\x01\x01",
        b"",
        encode_stamp(theirs) + b"\x01\x01",
        b"",
    ]
    assert accepted.count.sequence == 3


def test_a_publishers_stamp_is_plain_data_unless_publishers_stamp(accepted: Accepted) -> None:
    """Nobody is told to believe it: it stays a property, and the update gets a stamp of the node's count."""
    stamp = encode_stamp(Stamp("machine-7", 3, 5, 1_600_000_000_000_001))
    assert ingress(accepted).publish("client", [row(b"a", properties=stamp)], NOW_NS) == [SUCCESS]
    assert accepted.stamps == [Stamp("hub", NODE_EPOCH, 1, NOW_NS // 1000)]
    assert [update[4] for changes, _ in accepted.batches for update in changes.updates] == [stamp]


def test_nothing_accepted_is_nothing_told(accepted: Accepted) -> None:
    """A run that is refused as a whole neither logs nor dispatches an empty batch."""
    hub = ingress(accepted, (Selector("#"), never))
    assert hub.publish("client", [row(b"a"), row(b"b")], NOW_NS) == [NOT_AUTHORIZED] * 2
    assert accepted.batches == []
    assert (accepted.count.sequence, len(hub.replica)) == (0, 0)


@pytest.mark.parametrize("topic", [b"$SYS", b"$SYS/broker/uptime", READINESS_TOPIC, MANIFEST_TOPIC])
def test_topics_of_the_server_itself_are_refused(accepted: Accepted, topic: bytes) -> None:
    """Clients must not publish below $SYS, with links or without (MQTT 5, section 4.7.2)."""
    for hub in (ingress(accepted), ingress(accepted, (Selector("#"), never))):
        assert hub.publish("client", [row(topic, retain=True)], NOW_NS) == [NOT_AUTHORIZED]
        assert len(hub.replica) == 0


@pytest.mark.parametrize("topic", [b"$SYSTEM/x", b"$own/x", b"SYS"])
def test_other_dollar_topics_are_free(accepted: Accepted, topic: bytes) -> None:
    """Only $SYS is the server's; other names with a dollar sign are the clients' business."""
    assert ingress(accepted).publish("client", [row(topic)], NOW_NS) == [SUCCESS]


@pytest.mark.parametrize(
    ("topic", "verdict"),
    [
        (b"plant/1", NOT_AUTHORIZED),
        (b"plant", NOT_AUTHORIZED),
        (b"plant/debug/1", SUCCESS),
        (b"planet/1", SUCCESS),
        (b"hq/office/x/state", NOT_AUTHORIZED),
        (b"office/x/state", SUCCESS),
    ],
)
def test_replicas_are_read_only(accepted: Accepted, topic: bytes, verdict: ReasonCode) -> None:
    """A local PUBLISH inside a selector, after its prefix and without its excludes, is refused."""
    hub = ingress(
        accepted,
        (Selector("plant/#", ("plant/debug/#",)), never),
        (Selector("office/+/state", prefix="hq/"), never),
    )
    assert hub.publish("client", [row(topic)], NOW_NS) == [verdict]
    assert accepted.topics == ([topic] if verdict is SUCCESS else [])


@pytest.mark.parametrize("topic", [b"fanout/control/edge-2/plant", b"fanout/control/"])
def test_control_topics_of_other_nodes_are_free(accepted: Accepted, topic: bytes) -> None:
    """A next node in a chain publishes its heartbeats here, although this node replicates everything."""
    hub = ingress(accepted, (Selector("#"), never))
    assert hub.publish("client", [row(topic), row(b"fanout/other")], NOW_NS) == [SUCCESS, NOT_AUTHORIZED]


@pytest.mark.parametrize("prefix", ["", "z/", "fanout/"])
@pytest.mark.parametrize("at_primary", [b"fanout/control/n0/p", b"fanout/control/", b"fanout/control/missing"])
def test_control_topics_at_the_primary_cannot_be_forged(accepted: Accepted, prefix: str, at_primary: bytes) -> None:
    """Behind any prefix nobody publishes at the primary as a link does; without one they are those of nodes below."""
    forward = ForwardStandIn(SUCCESS)
    hub = ingress(accepted, (Selector("#", prefix=prefix, writes="forward"), forward))
    local = prefix.encode() + at_primary
    assert hub.publish("client", [row(local)], NOW_NS) == [NOT_AUTHORIZED if prefix else SUCCESS]
    assert accepted.topics == ([] if prefix else [local])
    assert forward.calls == []
    assert hub.publish("client", [row(prefix.encode() + b"fanout/controls")], NOW_NS) == [SUCCESS]
    assert len(forward.calls) == 1


async def test_writes_are_forwarded_where_the_selector_says_so(accepted: Accepted) -> None:
    """The row goes to the link of its selector as it is, and the link's verdict is the answer."""
    later: asyncio.Future[ReasonCode] = asyncio.get_running_loop().create_future()
    forward = ForwardStandIn(later)
    hub = ingress(
        accepted,
        (Selector("plant/#"), never),
        (Selector("set/#", prefix="hq/", writes="forward"), forward),
    )
    wanted = row(b"hq/set/1", qos=1)
    assert hub.publish("client", [row(b"own"), wanted], NOW_NS) == [SUCCESS, later]
    assert forward.calls == [(wanted, b"hq/")]
    assert accepted.topics == [b"own"]
    assert accepted.count.sequence == 1


def test_forwarding_may_fail_at_once(accepted: Accepted) -> None:
    """A link that is down answers without waiting."""
    forward = ForwardStandIn(ReasonCode.SERVER_UNAVAILABLE)
    hub = ingress(accepted, (Selector("set/#", writes="forward"), forward))
    assert hub.publish("client", [row(b"set/1")], NOW_NS) == [ReasonCode.SERVER_UNAVAILABLE]


def test_properties_of_retained_messages_count_towards_bytes_max(accepted: Accepted) -> None:
    """As payloads do; the stamp that a publisher put on its message is not kept with them, and does not count."""
    hub = ingress(accepted, bytes_max=20, publisher_stamps=True)
    stamp = encode_stamp(Stamp("line-3", 1_600_000_000_000_000, 9, 1_600_000_000_000_001))
    run = [
        row(b"a", b"x", retain=True, properties=EIGHT_BYTES + stamp),
        row(b"b", b"x", retain=True, properties=NINE_BYTES),
        row(b"b", b"x", retain=True, properties=EIGHT_BYTES),  # just fits
        row(b"a", b"x", retain=True, properties=NINE_BYTES),
        row(b"c", b"x", retain=True, properties=EIGHT_BYTES + stamp),
    ]
    assert hub.publish("client", run, NOW_NS) == [SUCCESS] * len(run)
    assert {topic: len(update[4]) for topic, update in hub.replica.values.items()} == {b"b": 8, b"c": 8}
    assert hub.replica.refused_by["bytes_max"] == 2


def test_values_that_expire_together_go_in_pieces(accepted: Accepted) -> None:
    """Each removes some, and says whether there are more."""
    hub = ingress(accepted)
    hub.publish("client", [row(b"%d" % number, retain=True, expiry_s=1) for number in range(7)], NOW_NS)
    accepted.batches.clear()
    due_ns = NOW_NS + 1_000_000_000
    assert [hub.remove_expired(due_ns, piece=3) for _ in range(3)] == [True, True, False]
    assert [len(changes.updates) for changes, _ in accepted.batches] == [3, 3, 1]


async def test_messages_are_acknowledged_when_they_are_on_disk(accepted: Accepted) -> None:
    """Where the disk has any of a run, all of it waits; those that were refused do not, and are not on the disk."""
    accepted.committed = asyncio.get_running_loop().create_future()
    rows = [
        row(b"a", qos=1, retain=True),
        row(b"b", qos=1),
        row(b"c", retain=True),
        row(b"$SYS/x", qos=1, retain=True),
        row(b"d", qos=2, retain=True),
    ]
    committed = accepted.committed
    assert ingress(accepted).publish("c", rows, NOW_NS) == [committed] * 3 + [NOT_AUTHORIZED, committed]
    assert accepted.rows == [*rows[:3], rows[4]]


def test_a_value_beyond_a_quota_of_the_user_is_delivered_and_not_retained(accepted: Accepted) -> None:
    """Without RETAIN, in both versions of MQTT; messages without RETAIN, removals and expiry are as always."""
    told: list[tuple[str, str]] = []
    owners = RetainedOwners({"alice": (1, 100)}.get, reached=lambda *each: told.append(each))
    hub = ingress(accepted, owners=owners, expiry_s=60)
    rows = [row(b"a", retain=True, expiry_s=1), row(b"b", retain=True), row(b"b"), row(b"c", b"", retain=True)]
    assert hub.publish("c", rows, NOW_NS, user="alice") == [SUCCESS] * 4
    assert accepted.rows == rows
    ((changes, _),) = accepted.batches
    assert [(each[0], each[1], each[3], each[6]) for each in changes.dispatch] == [
        (b"a", b"v", True, NOW_NS + 1_000_000_000),
        (b"b", b"v", False, 0),
        (b"b", b"v", False, 0),
        (b"c", b"", True, NOW_NS + 60_000_000_000),
    ]
    assert [*hub.replica.values] == [b"a"]
    assert hub.publish("d", [row(b"b", retain=True)], NOW_NS, user="bob") == [SUCCESS]
    hub.remove_expired(NOW_NS + 1_000_000_000, piece=10)
    assert hub.publish("c", [row(b"d", retain=True), row(b"e", retain=True)], NOW_NS, user="alice") == [SUCCESS] * 2
    assert sorted(hub.replica.values) == [b"b", b"d"]
    assert (told, owners.refused_by[RETAINED_TOPICS_KEY]) == ([("alice", RETAINED_TOPICS_KEY)], 2)


def test_a_value_beyond_a_quota_leaves_no_older_one(accepted: Accepted) -> None:
    """The old one is removed first, also one of the same run or of another user; subscribers and the disk get that."""
    owners = RetainedOwners({"alice": (9, 20)}.get)
    hub = ingress(accepted, owners=owners)
    hub.publish("b", [row(b"theirs", retain=True)], NOW_NS, user="bob")
    long = b"x" * 20
    rows = [
        row(b"$SYS/x"),
        row(b"t", qos=1, retain=True),
        row(b"t", long, qos=1, retain=True),
        row(b"theirs", long, retain=True),
        row(b"u", b"y" * 19, retain=True),
    ]
    assert hub.publish("c", rows, NOW_NS, user="alice") == [NOT_AUTHORIZED, *[SUCCESS] * 4]
    assert accepted.rows == rows[1:]
    assert [(each[0], each[1], each[3]) for each in accepted.batches[-1][0].dispatch] == [
        (b"t", b"v", True),
        (b"t", b"", True),
        (b"t", long, False),
        (b"theirs", b"", True),
        (b"theirs", long, False),
        (b"u", b"y" * 19, True),
    ]
    assert [*hub.replica.values] == [b"u"]
    assert (owners.used("alice"), owners.used("bob")) == ((1, 20), (0, 0))
    stamps = accepted.stamps
    assert len(set(stamps)) == len(stamps)


def test_a_removal_frees_its_place_at_once(accepted: Accepted) -> None:
    """For what follows in the same read: a quota does not depend on how a client's packets arrive."""
    hub = ingress(accepted, owners=RetainedOwners({"alice": (1, 100)}.get))
    hub.publish("c", [row(b"a", retain=True)], NOW_NS, user="alice")
    hub.publish("c", [row(b"a", b"", retain=True), row(b"b", retain=True)], NOW_NS, user="alice")
    hub.publish("c", [row(b"b", b"", retain=True), row(b"b", b"w", retain=True)], NOW_NS, user="alice")
    assert [(value[0], value[1]) for value in hub.replica.values.values()] == [(b"b", b"w")]
