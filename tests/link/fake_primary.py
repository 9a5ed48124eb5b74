"""A primary without I/O, and a session machine joined to it back to back under a manual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fanout.chain.manifest import ASK_FOR_MANIFEST, MANIFEST_TOPIC, Manifest, ManifestSum
from fanout.chain.stamp import StampCount
from fanout.config import Address, LinkConfig
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import Applied, AuditEnded, Event, Failed, SelectorComplete, StateEntered, TearDown
from fanout.link.model.resumption import StoredSession
from fanout.link.model.states import LinkState
from fanout.link.protocol.name_request import NAMES_MAX, NamedAnswer
from fanout.link.session.machine import LinkSession
from fanout.link.session.teardown import TOPICS_MAX
from fanout.link.snapshot.capability_check import RETAINED_COUNT
from fanout.link.snapshot.context import LinkContext
from fanout.mqtt.decoder import AckRun, Decoder, Item, PublishRun
from fanout.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    encode,
)
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.topics import matches
from fanout.replica.store import Replica
from fanout.selection import Selector
from tests.oracle.streams import ClientStream

__all__ = ["FakePrimary", "Pair", "make_config", "make_context"]

T = TypeVar("T")
UPTIME = b"$SYS/broker/uptime"


def make_config(*selectors: Selector, **changes: Any) -> LinkConfig:
    """Return a configuration with round numbers."""
    config = LinkConfig(
        name="plant",
        primaries=(Address("mqtt", "127.0.0.1", 1883),),
        selectors=selectors or (Selector("plant/#"),),
        connect_timeout_s=10.0,
        snapshot_quiet_s=5.0,
        heartbeat_s=5.0,
        keep_alive_s=30,
        session_expiry_s=300,
    )
    return replace(config, **changes)


def make_context(config: LinkConfig | None = None) -> LinkContext:
    """Return the collaborators of a link of node `edge-1` that is down."""
    config = config or make_config()
    return LinkContext.make(config, node_id="edge-1", replica=Replica(selectors=config.selectors), nonce=7)


@dataclass
class FakePrimary:
    """Answers one client at a time, in order, as Mosquitto does; knobs make it misbehave."""

    version: int = 5
    retained: dict[bytes, bytes] = field(default_factory=dict)
    system_topics: bool = True
    """Whether `$SYS/broker/version` exists."""
    version_text: bytes = b"mosquitto version 2.0.11"
    """What it says."""
    counts: bool = True
    """Whether it tells how many retained messages it has, at once to who asks for its uptime too."""
    hidden: set[bytes] = field(default_factory=set)
    """Topics that the client may not read: no copies of them come, nor updates."""
    asynchronous: bool = False
    """Whether retained messages leave behind everything that is asked for meanwhile."""
    burst: int | None = None
    """So many of these leave at a time (`release`); None for all, as soon as nothing else is to be sent."""
    lose: Callable[[int, bytes], bool] = lambda number, topic: False
    """Which copies are dropped: told how often the Topic Filter was subscribed, and the topic."""
    limit: int | None = None
    """How many retained messages one Topic Filter brings at most; None for all."""
    wildcards: bool = True
    """Whether a Topic Filter with wildcards brings retained messages at all."""
    manifest: bool = False
    """Whether it tells what it sent, to who asks."""
    alters: bytes = b""
    """A topic whose copies have another value than the manifest says."""
    sends_again: bool = True
    """Whether a second SUBSCRIBE of a Topic Filter brings its retained messages again."""
    connack: Connack = field(default_factory=lambda: Connack(False, 0))
    """The answer to CONNECT; Session Present is filled in."""
    allow_control: bool = True
    """Whether publishing below `fanout/` is allowed; otherwise PUBACK refuses it."""
    control_code: int = 0x87
    """The Reason Code of that PUBACK."""
    silent_control: bool = False
    """Whether what is published below `fanout/` vanishes without a word."""
    truncate_after: int | None = None
    """After so many packets to the client, counted from now, everything is dropped; None drops nothing."""
    swallow: tuple[type[Packet], ...] = ()
    """Answers that are dropped."""
    closes_at: Callable[[bytes, bytes], bool] = lambda topic, payload: False
    """Told topic and payload of what the client publishes: whether it ends the connection (`is_closed`)."""
    closes_at_system: bool = False
    """Whether a SUBSCRIBE below `$SYS/` ends the connection (`is_closed`)."""
    refuse_filters: tuple[bytes, ...] = ()
    """Topic Filters that SUBACK refuses."""
    filters_max: int | None = None
    """Number of Topic Filters that it takes in one SUBSCRIBE; None for any."""
    at_filters_max: str = "rest"
    """What SUBACK refuses above that: the "rest", or "all"; or "close" ends the connection."""
    levels_max: int | None = None
    """Number of levels of a Topic Filter above which SUBACK refuses it (0x97); None for any."""
    merges_no_local: bool = False
    """Whether No Local of one subscription applies to all that match a message, as at mochi-mqtt."""
    maximum_qos: int = 2
    """The highest QoS that SUBACK grants."""
    properties: bytes = b""
    """Properties of every PUBLISH to the client."""
    tells_existed: bool = True
    """Whether UNSUBACK tells that a subscription existed."""
    published_qos: int = 1
    """QoS at which its retained values were published, which copies have at most."""

    def __post_init__(self) -> None:
        self.connects: list[Connect] = []
        self.subscribes: list[Subscribe] = []
        self.unsubscribes: list[Unsubscribe] = []
        self.published: list[tuple[bytes, bytes, int]] = []
        """(topic, payload, flags) of what the client published."""
        self.acks: list[tuple[PacketType, int]] = []
        self.disconnects: list[Disconnect] = []
        self.pings = 0
        self.subscriptions: dict[bytes, Subscription] = {}
        self.has_session = False
        self.is_closed = False
        self.stream = ClientStream(version=self.version)
        """What the client sends passes the oracle."""
        self._decoder: Decoder | None = None
        self._out: list[bytes] = []
        self._late: list[bytes] = []
        self._times: dict[bytes, int] = {}
        """Topic Filter to how often its retained messages were asked for."""
        self._next_id = 0

    def accept(self) -> None:
        """Begin a Network Connection."""
        self.stream.begin()
        self._decoder = Decoder(version=None, packet_bytes_max=1 << 20, role="server")
        self.is_closed = False
        self._out.clear()
        self._late.clear()

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        assert self._decoder is not None
        if not self.is_closed:
            self.stream.feed(data)
        for item in self._decoder.feed(data):
            if not self.is_closed:
                self._on_item(item)
        assert self._decoder.fault is None, self._decoder.fault

    def take(self) -> bytes:
        """Return the bytes for the client."""
        if not self._out and self.burst is None:
            self.release(len(self._late))
        data = b"".join(self._out)
        self._out.clear()
        return data

    def take_packets(self, count: int | None = None) -> list[bytes]:
        """Return packets for the client, each for itself: the oldest ones, or all."""
        packets = self._out[:count]
        del self._out[: len(packets)]
        return packets

    def asked(self, topic_filter: bytes, *, retain_handling: int = 0) -> int:
        """Return how often a Topic Filter was subscribed, with its retained messages or otherwise."""
        filters = [(each.topic_filter, each.retain_handling) for one in self.subscribes for each in one.subscriptions]
        return filters.count((topic_filter, retain_handling))

    def release(self, count: int) -> None:
        """Send retained messages that were held back."""
        for packet in self._late[:count]:
            self._write(packet)
        del self._late[:count]

    def send(self, packet: Packet) -> None:
        """Send a packet to the client."""
        if not isinstance(packet, self.swallow):
            self._write(encode(packet, version=self.version))

    def publish(
        self, topic: bytes, payload: bytes, *, qos: int = 1, retain: bool = True, properties: bytes = b""
    ) -> None:
        """Publish a message as another client would."""
        if retain:
            self.retained[topic] = payload
            if not payload:
                del self.retained[topic]
        for topic_filter, subscription in self.subscriptions.items():
            if matches(topic_filter, topic) and topic not in self.hidden:
                self.deliver(
                    topic,
                    payload,
                    qos=min(qos, subscription.qos),
                    retain=retain and (subscription.retain_as_published or self.version == 4),
                    properties=properties,
                )
                return

    def deliver(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int | None = None,
        properties: bytes = b"",
    ) -> None:
        """Send one PUBLISH to the client, whatever it subscribed to."""
        if packet_id is None and qos:
            self._next_id += 1
            packet_id = self._next_id
        self._write(
            encode_publish(
                topic,
                payload,
                version=self.version,
                qos=qos,
                retain=retain,
                dup=dup,
                packet_id=packet_id or 0,
                properties=properties or self.properties,
            )
        )

    def _write(self, packet: bytes) -> None:
        if self.truncate_after is not None:
            if self.truncate_after == 0:
                return
            self.truncate_after -= 1
        self._out.append(packet)

    def _on_item(self, item: Item) -> None:
        if isinstance(item, Connect):
            self.connects.append(item)
            present = self.has_session and not item.clean_start
            if not present:
                self.subscriptions.clear()
            self.has_session = not self.connack.reason_code
            self.send(replace(self.connack, session_present=present and self.has_session))
        elif isinstance(item, Subscribe):
            self._on_subscribe(item)
        elif isinstance(item, Unsubscribe):
            self.unsubscribes.append(item)
            existed = [self.subscriptions.pop(name, None) is not None for name in item.topic_filters]
            codes = tuple(0 if each and self.tells_existed else 0x11 for each in existed)
            self.send(Unsuback(item.packet_id, codes if self.version == 5 else ()))
        elif isinstance(item, Pingreq):
            self.pings += 1
            self.send(Pingresp())
        elif isinstance(item, Disconnect):
            self.disconnects.append(item)
        elif isinstance(item, PublishRun):
            for topic, payload, flags, packet_id, *_ in item.rows:
                self.is_closed |= self.closes_at(topic, payload)
                if self.is_closed:
                    self.published.append((topic, payload, flags))
                    break
                self._on_publish(topic, payload, flags, packet_id)
        elif isinstance(item, AckRun):
            self.acks += [(item.type, packet_id) for packet_id in item.packet_ids]
            if item.type is PacketType.PUBREC:
                for packet_id in item.packet_ids:
                    self.send(Ack(PacketType.PUBREL, packet_id))
            elif item.type is PacketType.PUBREL:
                for packet_id in item.packet_ids:
                    self.send(Ack(PacketType.PUBCOMP, packet_id))

    def _on_subscribe(self, packet: Subscribe) -> None:
        self.subscribes.append(packet)
        if self.closes_at_system and any(each.topic_filter.startswith(b"$SYS/") for each in packet.subscriptions):
            self.is_closed = True
            return
        codes = [
            0x87 if each.topic_filter in self.refuse_filters else min(each.qos, self.maximum_qos)
            for each in packet.subscriptions
        ]
        if self.filters_max is not None and len(codes) > self.filters_max:
            if self.at_filters_max == "close":
                self.is_closed = True
                return
            kept = self.filters_max if self.at_filters_max == "rest" else 0
            codes[kept:] = [0x97] * (len(codes) - kept)
        if self.levels_max is not None:
            deep = (each.topic_filter.count(b"/") >= self.levels_max for each in packet.subscriptions)
            codes = [0x97 if is_deep else code for code, is_deep in zip(codes, deep, strict=True)]
        promises = self.manifest and ASK_FOR_MANIFEST in packet.properties.user_property
        promise = Properties(user_property=(ASK_FOR_MANIFEST,)) if promises else NO_PROPERTIES
        self.send(Suback(packet.packet_id, tuple(codes), promise))
        for subscription, code in zip(packet.subscriptions, codes, strict=True):
            if code >= 0x80:
                continue
            self.subscriptions[subscription.topic_filter] = subscription
            if subscription.retain_handling:
                continue
            topic_filter = subscription.topic_filter
            self._times[topic_filter] = number = self._times.get(topic_filter, 0) + 1
            if number > 1 and not self.sends_again:
                continue
            before = len(self._out)
            if topic_filter in (b"$SYS/broker/version", b"$SYS/+/version") and self.system_topics:
                self.deliver(b"$SYS/broker/version", self.version_text, retain=True)
            total = ManifestSum()
            left = len(self.retained) if self.limit is None else self.limit
            if promises:
                self.deliver(MANIFEST_TOPIC, Manifest(topic_filter.decode(), None).encode())
            for topic, payload in list(self.retained.items()):
                if not (matches(topic_filter, topic) if self.wildcards else topic_filter == topic):
                    continue
                if topic in self.hidden:
                    continue
                total.add(topic, payload)
                left -= 1
                if left >= 0 and not self.lose(number, topic):
                    altered = payload + b"!" if topic == self.alters else payload
                    self.deliver(topic, altered, qos=min(self.published_qos, subscription.qos), retain=True)
            if promises:
                self.deliver(MANIFEST_TOPIC, Manifest(topic_filter.decode(), total.count, total.digest).encode())
            if self.asynchronous:
                self._late += self._out[before:]
                del self._out[before:]
        if self.counts and any(each.topic_filter == UPTIME for each in packet.subscriptions):
            self.deliver(UPTIME, b"1 seconds", retain=True)
            self.tell_count()

    def tell_count(self) -> None:
        """Tell the uptime, and behind it the number of retained messages, 50 own ones among them."""
        self.deliver(UPTIME, b"2 seconds", retain=True)
        self.deliver(RETAINED_COUNT, b"%d" % (len(self.retained) + 50), retain=True)

    def _on_publish(self, topic: bytes, payload: bytes, flags: int, packet_id: int) -> None:
        self.published.append((topic, payload, flags))
        qos = flags >> 1 & 3
        control = topic.startswith(b"fanout/")
        if control and not self.allow_control:
            self.send(Ack(PacketType.PUBACK, packet_id, self.control_code))
            return
        if not (control and self.silent_control):
            self._deliver_own(topic, payload, qos=qos, retain=bool(flags & 1))
        self.send(Ack(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, packet_id))

    def _deliver_own(self, topic: bytes, payload: bytes, *, qos: int, retain: bool) -> None:
        matching = [each for name, each in self.subscriptions.items() if matches(name, topic)]
        if any(each.no_local for each in (matching if self.merges_no_local else matching[:1])):
            if retain:
                self.retained[topic] = payload
            return
        self.publish(topic, payload, qos=qos, retain=retain)


class Pair:
    """A session machine and a primary, with time that passes when told."""

    def __init__(
        self,
        config: LinkConfig | None = None,
        primary: FakePrimary | None = None,
        *,
        topics_max: int | None = None,
        stamps: StampCount | None = None,
        replica: Replica | None = None,
        piece_topics: int = TOPICS_MAX,
        nonce: int = 7,
    ) -> None:
        """Join a machine that is down with a primary."""
        self.config = config or make_config()
        self.primary = primary or FakePrimary(version=self.config.version)
        self.replica = replica or Replica(selectors=self.config.selectors, topics_max=topics_max)
        self.session = LinkSession(
            self.config,
            node_id="edge-1",
            replica=self.replica,
            nonce=nonce,
            stamps=stamps,
            piece_topics=lambda: piece_topics,
        )
        self.now = 1000.0
        self.tells_promises = True
        """Whether the primary is asked by name at QoS 1 as soon as the session wants it."""
        self.events: list[Event] = []
        self.held: list[bytes] | None = None
        """What was not read while the session is held; None while it is not."""

    @property
    def now_ns(self) -> int:
        """Unix time in nanoseconds, in step with `now`."""
        return round(self.now * 1e9) + 1_700_000_000_000_000_000

    def is_in(self, state: LinkState) -> bool:
        """Say whether the session is in a state."""
        return self.session.lifecycle.state is state

    def connect(self, *, pump: bool = True) -> None:
        """Begin a Network Connection, and let both talk until they have nothing to say."""
        self.primary.accept()
        self._note(self.session.open(password=None, now_ns=self.now_ns, now=self.now))
        if pump:
            self.pump()

    def connect_to(self, state: LinkState) -> None:
        """Begin a Network Connection, and let both talk until the session is in a state; its output is not carried."""
        self.connect(pump=False)
        while not self.is_in(state):
            self.primary.receive(self.session.take_output())
            self.feed(self.primary.take())

    def connect_until(self, wanted: bytes) -> bytes:
        """Begin a Network Connection, let both talk until the session writes `wanted`, and return that output."""
        self.connect(pump=False)
        while wanted not in (data := self.session.take_output()):
            self.primary.receive(data)
            self.feed(self.primary.take())
        return data

    def connect_until_complete(self) -> None:
        """Begin a Network Connection, and let both talk until the first selector is complete."""
        self.connect(pump=False)
        while not self.of(SelectorComplete):
            self.primary.receive(self.session.take_output())
            self.feed(self.primary.take())

    def pump(self) -> None:
        """Carry bytes both ways until there are none, or the session wants to be closed."""
        while True:
            up = self.session.take_output()
            if up:
                self.primary.receive(up)
            down = self.primary.take()
            if down and self.held is not None:
                self.held.append(down)
            elif down:
                self.feed(down)
            if not up and not down and not (self.tells_promises and self._tell_promises()):
                return

    def take_promises(self, answer: NamedAnswer | str) -> None:
        """Give the session an answer to its request by name at QoS 1."""
        self._note(self.session.run(self.session.lifecycle.take_promises, answer, now_ns=self.now_ns, now=self.now))

    def _tell_promises(self) -> bool:
        """Answer as the primary does; return whether the session wanted that."""
        primary = self.primary
        names = self.session.names_in_doubt(NAMES_MAX)
        if names:
            flags = primary.published_qos << 1 | 1
            held = {name: primary.retained[name.encode()] for name in names if name.encode() in primary.retained}
            values = {name: (name.encode(), payload, flags, 1, b"", None, 0) for name, payload in held.items()}
            self.take_promises(NamedAnswer(values, frozenset(names) - values.keys(), {}))
        return bool(names)

    def hold(self) -> None:
        """Read nothing from the primary from now on."""
        self.held = []
        self.session.hold(True, now=self.now)

    def release(self) -> None:
        """Read again, first what came meanwhile."""
        self.session.hold(False, now=self.now)
        came, self.held = self.held or [], None
        self.tick()
        for data in came:
            self.feed(data)
        self.pump()

    def feed(self, data: bytes) -> None:
        """Give bytes to the session; nothing is carried back."""
        self.primary.stream.note(data)
        self._note(self.session.receive(data, now_ns=self.now_ns, now=self.now))

    def tick(self) -> None:
        """Do what is due, and carry what follows."""
        self._note(self.session.tick(now_ns=self.now_ns, now=self.now))
        self.pump()

    def wait(self, seconds: float) -> None:
        """Let time pass, with every tick that is due in between."""
        end = self.now + seconds
        for _ in range(1000):
            deadline = self.session.deadline(now_ns=self.now_ns, now=self.now)
            if deadline > end:
                break
            self.now = max(self.now, deadline)
            self.tick()
        else:
            raise AssertionError("the session is always due: a busy loop")
        self.now = end

    def lose(self, *, by_peer: bool = False) -> None:
        """End the Network Connection; `by_peer` as `LinkSession.lost` takes it."""
        self._note(self.session.run(self.session.lose, by_peer, now_ns=self.now_ns, now=self.now))

    def reselect(self, *selectors: Selector, pump: bool = True) -> None:
        """Go on with other selectors on the connection, as a link does."""
        former = self.replica.selectors
        self._note(self.session.run(self.session.lifecycle.give_up_comparison, now_ns=self.now_ns, now=self.now))
        staying = [one for one in selectors if not one.live_only]
        for changes in self.replica.drop_outside(staying, now_ns=self.now_ns):
            self._note([Applied(changes, b"", self.session.lifecycle.epoch)])
        for _ in self.replica.select(selectors):
            pass
        self._note(self.session.run(self.session.reselect, former, now_ns=self.now_ns, now=self.now))
        if pump:
            self.pump()

    def audit(self, *, confirmed: int | None = None, pump: bool = True, **more: Any) -> None:
        """Begin an audit, and let both talk until they have nothing to say."""
        begun = self.session.audit(confirmed=confirmed, now_ns=self.now_ns, now=self.now, **more)
        assert not isinstance(begun, str), begun
        self._note(begun)
        if pump:
            self.pump()

    def report(self) -> AuditReport:
        """Return the report of the one audit that has ended, without its duration."""
        (ended,) = self.of(AuditEnded)
        return replace(ended.report, seconds=0)

    def tear_down(self) -> None:
        """Remove the replica, as `TearDown` asks."""
        for _ in self.replica.tear_down(now_ns=self.now_ns):
            pass
        self._note(self.session.run(self.session.lifecycle.note_torn_down, now_ns=self.now_ns, now=self.now))
        self.pump()

    def go_live(self) -> None:
        """Connect and become live; what happened on the way is forgotten."""
        self.go_live_with_events()
        self.events.clear()

    def go_live_with_events(self) -> None:
        """Connect and become live."""
        self.connect()
        assert self.is_in(LinkState.LIVE), (self.session.lifecycle.state, self.events)

    def of(self, kind: type[T]) -> list[T]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def states(self) -> list[LinkState]:
        """Return the states entered."""
        return [event.state for event in self.of(StateEntered)]

    def failure(self) -> str:
        """Return the text of the failure; there must be one."""
        (failed,) = self.of(Failed)
        return str(failed.error)

    def reason(self) -> str:
        """Return the reason of the tear-down; there must be one."""
        (torn_down,) = self.of(TearDown)
        return torn_down.reason

    def values(self) -> dict[bytes, bytes]:
        """Return the replica's values."""
        return {topic: update[1] for topic, update in self.replica.view.items()}

    def stored(self) -> StoredSession:
        """Return what a later process would find of the session."""
        stored = self.session.stored_session()
        assert stored is not None
        return stored

    def dispatched(self) -> list[tuple[bytes, bytes]]:
        """Return topic and payload of everything to dispatch."""
        return [(update[0], update[1]) for each in self.of(Applied) for update in each.changes.dispatch]

    def _note(self, events: Iterable[Event]) -> None:
        self.events += events


NO = NO_PROPERTIES
"""Short for no properties."""
STAMPING = Properties(user_property=(("fanout-stamps", "1"), ("fanout-node", "root")))
"""What the CONNACK of a fanout primary says."""
