"""Messages that pass through a chain of nodes, and readers that check each of them at every hop.

A `fanout primary`, a secondary of it (retained values on disk alone), and a secondary of that. Clients
publish at all three, so that messages go down by one and two links, and up by forwarded writes. At each node there are
readers of every kind: MQTT 3.1.1 and 5, with Topic Aliases, Subscription Identifiers, a small Maximum Packet Size, as
members of a shared subscription, asking for stamps, slow ones, ones that lose their connection. What must hold:

- Every byte that a node sends is MQTT (`tests.oracle.streams`).
- A message comes with the topic, the payload and the properties that were published, by type, User Properties in their
  order; only its Message Expiry Interval may have become shorter. Who asked for stamps may get one User Property more,
  the trailer of nodes, behind the others.
- Every message comes to every reader once, or was refused. Retained values at QoS 0 may be replaced by newer ones.
- Who subscribes later gets the last value of each topic, also after the nodes were restarted.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tests.oracle.clients import Client
from tests.oracle.encoding import encode_publish
from tests.oracle.messages import Sample, make_sample
from tests.oracle.packets import Kind, Packet, Properties, Value
from tests.support.nodes import QUICK, LiveNode, link, selector

__all__ = ["Campaign", "chain_of_nodes"]

DEADLINE_S = 60.0
"""How long a batch may take; generous, for a busy machine."""
KEPT_BATCHES = 40
"""Batches after which nobody gets a message any more, however slow."""
SLACK_S = 3
"""By how much a Message Expiry Interval may be shorter than the time that passed says."""
_EXPIRY, _IDENTIFIER, _ALIAS, _USER = 0x02, 0x0B, 0x23, 0x26
_TRAILER = re.compile(rb"([A-Za-z0-9][A-Za-z0-9_.-]*:[0-9]+:[0-9]+:[0-9]+)?(;copy)?")
_OF_HOP = (_EXPIRY, _IDENTIFIER, _ALIAS, _USER)


class Plain(NamedTuple):
    """Properties as they are compared."""

    single: Properties
    """Those that occur once, in the order of their identifiers."""
    user: tuple[Value, ...]
    """User Properties in order."""
    expiry_s: int | None


@lru_cache(4096)
def plain(properties: Properties) -> Plain:
    """Return properties as they are compared."""
    if not properties:
        return _NONE
    return Plain(
        tuple(sorted((one for one in properties if one[0] not in _OF_HOP), key=lambda one: one[0])),
        tuple(value for name, value in properties if name == _USER),
        next((value for name, value in properties if name == _EXPIRY), None),  # type: ignore[arg-type]  # an integer
    )


_NONE = Plain((), (), None)


class Ledger:
    """What was published.

    Attributes:
        latest: By topic, the value that a new subscriber is to get.
    """

    def __init__(self) -> None:
        self.latest: dict[bytes, Sample] = {}
        self._events: dict[bytes, Sample] = {}
        self._values: dict[int, Sample] = {}
        self._removals: dict[bytes, list[Sample]] = {}
        self._batches: deque[list[Sample]] = deque()

    def begin_batch(self) -> None:
        """Forget what nobody gets any more."""
        self._batches.append([])
        if len(self._batches) <= KEPT_BATCHES:
            return
        for sample in self._batches.popleft():
            if not sample.retain:
                self._events.pop(sample.topic, None)
            elif not sample.payload:
                self._removals[sample.topic].remove(sample)
            elif self.latest.get(sample.topic) is not sample:
                self._values.pop(sample.number, None)
            else:
                self._batches[0].append(sample)

    def add(self, sample: Sample) -> None:
        """Note a message before it is published."""
        sample.published_s = time.monotonic()
        self._batches[-1].append(sample)
        if not sample.retain:
            self._events[sample.topic] = sample
        elif sample.payload:
            self._values[sample.number] = sample
        else:
            self._removals.setdefault(sample.topic, []).append(sample)
        if sample.retain and not sample.is_refused:
            if sample.payload:
                self.latest[sample.topic] = sample
            else:
                self.latest.pop(sample.topic, None)

    def find(self, packet: Packet) -> list[Sample]:
        """Return what a PUBLISH may be."""
        event = self._events.get(packet.topic)
        if event is not None:
            return [event]
        if not packet.payload:
            return self._removals.get(packet.topic, [])
        number = packet.payload.partition(b"|")[0]
        sample = self._values.get(int(number)) if number.isdigit() else None
        return [] if sample is None else [sample]


class Subscription(NamedTuple):
    """One subscription of a reader, to everything below a topic."""

    below: bytes
    qos: int
    identifier: int = 0
    as_published: bool = False
    group: bytes = b""


def _has_trailer(packet: Packet, *, copy: bool = False) -> bool:
    """Say whether the last User Property is a trailer of a node, which says that it is a copy where that is asked."""
    *_, pair = packet.values(_USER) or [(b"", b"")]
    assert isinstance(pair, tuple)
    name, value = pair
    return name == b"fanout-stamp" and _TRAILER.fullmatch(value) is not None and (not copy or value.endswith(b";copy"))


@dataclass
class Reader:
    """A client that subscribes and compares.

    Attributes:
        missing: Numbers of messages that it has to get.
        state: The newest number by topic of retained values, as it was told.
        received: How many messages it got.
    """

    name: str
    node: LiveNode
    ledger: Ledger
    subscriptions: tuple[Subscription, ...]
    version: int = 5
    properties: Properties = ()
    packet_bytes_max: int = 0
    is_lossy: bool = False
    """Whether it may miss messages, since it is slow."""
    may_repeat: bool = False
    """Whether it may get messages twice, since it loses its connection."""
    sharing: Reader | None = None
    """Whose messages it shares."""
    missing: set[int] = field(default_factory=set)
    state: dict[bytes, int] = field(default_factory=dict)
    received: int = 0
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        client_id = f"{self.name}&fanout-copy".encode()
        self.client = Client(f"{self.name} at {self.node.name}", client_id, version=self.version, take=self.take)
        self.is_stamped = False
        self._seen: set[int] = set()
        if self.sharing is not None:
            self.missing, self._seen = self.sharing.missing, self.sharing._seen

    async def connect(self, *, clean_start: bool = True) -> None:
        """Connect, and subscribe in a new session."""
        await self.client.connect(self.node.port, properties=self.properties, clean_start=clean_start)
        assert self.client.connack is not None
        self.is_stamped = (b"fanout-stamps", b"1") in self.client.connack.values(_USER)
        if self.client.connack.session_present:
            return
        for one in self.subscriptions:
            prefix = b"$share/" + one.group + b"/" if one.group else b""
            options = one.qos | (8 if one.as_published and self.version == 5 else 0)
            properties = ((_IDENTIFIER, one.identifier),) if one.identifier else ()
            await self.client.subscribe([(prefix + one.below + b"/#", options)], properties=properties)

    def expect(self, sample: Sample) -> None:
        """Note a message that is about to be published."""
        matching = self._matching(sample.topic)
        if not matching or sample.is_refused or self.is_lossy:
            return
        if not min(sample.qos, max(one.qos for one in matching)) and (sample.retain or self.may_repeat):
            return  # a newer value may take its place, or the connection be lost
        if self.packet_bytes_max and sample.size() > self.packet_bytes_max:
            return
        self.missing.add(sample.number)

    def take(self, packet: Packet) -> None:
        """Compare a message with what was published."""
        self.received += 1
        matching = self._matching(packet.topic)
        samples = self.ledger.find(packet)
        problems = [self._differs(sample, packet, matching) for sample in samples]
        fitting = [sample for sample, problem in zip(samples, problems, strict=True) if not problem]
        if fitting:  # removals of one topic may be alike
            self._mark(next((one for one in fitting if one.number in self.missing), fitting[-1]), packet)
        elif samples:
            self._note(problems[-1], packet, samples[-1])
        elif not self.is_lossy:
            self._note("nobody published this", packet)

    def all_findings(self) -> list[str]:
        """Return what does not hold."""
        return self.findings + self.client.findings

    def _matching(self, topic: bytes) -> list[Subscription]:
        return [one for one in self.subscriptions if topic.startswith(one.below + b"/")]

    def _mark(self, sample: Sample, packet: Packet) -> None:
        number = sample.number
        if sample.retain:
            if packet.payload:
                self.state[packet.topic] = number
            else:
                self.state.pop(packet.topic, None)
        may_repeat = packet.retain or self.may_repeat or (self.is_stamped and _has_trailer(packet, copy=True))
        if number in self._seen and sample.payload and not may_repeat:
            self._note("delivered twice", packet, sample)
        self._seen.add(number)
        self.missing.discard(number)

    def forget(self, floor: int) -> None:
        """Forget which messages came, below a number."""
        self._seen -= {number for number in self._seen if number < floor}

    def _differs(self, sample: Sample, packet: Packet, matching: list[Subscription]) -> str:
        """Return what is wrong; an empty string for nothing."""
        if sample.is_refused:
            return "was to be refused"
        if (sample.topic, sample.payload) != (packet.topic, packet.payload):
            return "another topic or payload"
        if not matching:
            return "no subscription matches"
        if packet.qos > max(one.qos for one in matching):
            return "more QoS than was granted"
        if packet.retain and not sample.retain:
            return "RETAIN for what was not retained"
        if self.version == 4:
            return ""
        got, wanted = plain(packet.properties), plain(sample.properties)
        if got.single != wanted.single:
            return "other properties"
        if got.user != wanted.user and not (self.is_stamped and got.user[:-1] == wanted.user and _has_trailer(packet)):
            return "other User Properties"
        given = sorted(value for name, value in packet.properties if name == _IDENTIFIER)
        if given != sorted(one.identifier for one in matching if one.identifier):
            return "other Subscription Identifiers"
        if (got.expiry_s is None) is not (wanted.expiry_s is None):
            return "Message Expiry Interval"
        if got.expiry_s is not None and wanted.expiry_s is not None:
            passed_s = time.monotonic() - sample.published_s + SLACK_S
            if not wanted.expiry_s - passed_s <= got.expiry_s <= wanted.expiry_s:
                return "Message Expiry Interval"
        return ""

    def _note(self, problem: str, packet: Packet, sample: Sample | None = None) -> None:
        if len(self.findings) < 5:
            self.findings.append(f"{self.client.name}: {problem}: got {packet}, published {sample}")


@dataclass
class Publisher:
    """A client that publishes what is made for it."""

    name: str
    node: LiveNode
    root: bytes
    share: float
    version: int = 5
    refused: Counter[int] = field(default_factory=Counter)
    """Messages that were refused, by Reason Code."""

    def __post_init__(self) -> None:
        self.client = Client(
            f"{self.name} at {self.node.name}",
            f"{self.name}&fanout-stamp".encode(),
            version=self.version,
            take=lambda packet: None,
        )
        self.waiting: dict[int, Sample] = {}
        self._packet_id = 0
        self._aliases: dict[bytes, int] = {}

    async def connect(self) -> None:
        """Connect."""
        self._aliases.clear()
        await self.client.connect(self.node.port)

    def encode(self, sample: Sample, rng: random.Random) -> bytes:
        """Return its PUBLISH, perhaps with a Topic Alias."""
        packet_id = 0
        if sample.qos:
            self._packet_id = packet_id = self._packet_id % 65_535 + 1
            self.waiting[packet_id] = sample
        topic, properties = sample.topic, sample.properties
        assert self.client.connack is not None
        if sample.retain and self.version == 5 and rng.random() < 0.5:
            alias = self._aliases.get(topic)
            if alias is not None:
                topic = b""
            elif len(self._aliases) < self.client.connack.property(0x22):
                alias = self._aliases[topic] = len(self._aliases) + 1
            if alias is not None:
                at = rng.randint(0, len(properties))
                properties = (*properties[:at], (_ALIAS, alias), *properties[at:])
        return encode_publish(
            topic,
            sample.payload,
            version=self.version,
            qos=sample.qos,
            retain=sample.retain,
            packet_id=packet_id,
            properties=properties,
        )

    def settle(self) -> list[Sample]:
        """Take what was answered, and return what was refused and should not have been."""
        wrong = []
        for packet_id in [one for one in self.waiting if one in self.client.codes]:
            sample, code = self.waiting.pop(packet_id), self.client.codes.pop(packet_id)
            if code >= 0x80:
                self.refused[code] += 1
            if (code >= 0x80) is not sample.is_refused:
                wrong.append(sample)
        return wrong


@dataclass
class Campaign:
    """Readers and publishers at a chain of nodes.

    Attributes:
        messages: How many were published.
        received: How many messages readers got.
        findings: What does not hold; empty for nothing.
    """

    root: LiveNode
    middle: LiveNode
    leaf: LiveNode
    seed: int
    batch_messages: int = 1000
    messages: int = 0
    findings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.readers: list[Reader] = []
        self.publishers: list[Publisher] = []
        self._rng = random.Random(self.seed)
        self._batches = 0
        self._joined = 0

    @property
    def received(self) -> int:
        """How many messages readers got."""
        return self._joined + sum(reader.received for reader in self.readers)

    async def run(self, count: int) -> None:
        """Publish so many messages, and check what new subscribers get, before and after a restart."""
        try:
            await self._begin()
            while self.messages < count and not self.findings:
                await self._batch()
            await self._look_at_slow_ones()
            for node in (self.root, self.middle, self.leaf):
                await self._join(node, version=5)
                await self._join(node, version=4)
            if not self.findings:
                await self._restart()
        finally:
            for client in self._clients():
                client.abort()
        for node in (self.root, self.middle, self.leaf):
            if "Traceback" in node.log_text():
                self.findings.append(f"{node.name} logged a traceback: {node.log_text()[-2000:]}")
        self.findings = [f"seed {self.seed}, {self.messages} messages: {finding}" for finding in self.findings]

    async def _begin(self) -> None:
        everything = (Subscription(b"fz", 2, as_published=True), Subscription(b"own", 2, as_published=True))
        for node in (self.root, self.middle, self.leaf):
            make = self._reader(node)
            make("plain", everything)
            make("old", (Subscription(b"fz", 1), Subscription(b"own", 1)), version=4)
            make("aliases", (Subscription(b"fz", 0), Subscription(b"own", 0)), properties=((0x22, 10),))
            overlapping = (
                Subscription(b"fz", 0, 1),
                Subscription(b"fz/e", 2, 268_435_455),
                Subscription(b"own", 1, 128),
            )
            make("identifiers", overlapping, properties=((0x22, 65_535), (0x17, 0)))
            make("small", everything, properties=((0x27, 150), (0x21, 5)), packet_bytes_max=150)
            first = make("sharing", (Subscription(b"fz", 1, group=b"g&"),))
            make("sharing-too", (Subscription(b"fz", 1, group=b"g&"),), sharing=first)
            asks = ((_USER, (b"fanout-stamps", b"1")), (_USER, (b"fanout-node", b"edge-9")))
            make("stamps", everything, properties=asks)
        self.slow = self._reader(self.middle)("slow", (Subscription(b"fz", 0), Subscription(b"own", 0)), is_lossy=True)
        self.roaming = [
            self._reader(node)("roaming", everything, properties=((0x11, 600), (0x21, 20)), may_repeat=True)
            for node in (self.middle, self.leaf)
        ]
        self.publishers = [
            Publisher("down", self.root, b"fz", 0.4),
            Publisher("old", self.root, b"fz", 0.1, version=4),
            Publisher("up-1", self.middle, b"fz", 0.15),
            Publisher("up-2", self.leaf, b"fz", 0.2),
            Publisher("own", self.middle, b"own", 0.15),
        ]
        await asyncio.gather(*(one.connect() for one in self.readers))
        await asyncio.gather(*(one.connect() for one in self.publishers))

    def _clients(self) -> list[Client]:
        return [*(one.client for one in self.readers), *(one.client for one in self.publishers)]

    def _reader(self, node: LiveNode) -> Callable[..., Reader]:
        def make(name: str, subscriptions: tuple[Subscription, ...], **more: object) -> Reader:
            reader = Reader(name, node, self.ledger, subscriptions, **more)  # type: ignore[arg-type]  # as it takes them
            self.readers.append(reader)
            return reader

        return make

    async def _batch(self) -> None:
        rng = self._rng
        self._batches += 1
        self.ledger.begin_batch()
        pauses = self._batches % 4 == 1
        if pauses:
            self.slow.client.pause()
        roams = self._batches % 3 == 0
        for reader in self.roaming:
            reader.client.answers = not roams
        for publisher in self.publishers:
            written = []
            for _ in range(round(self.batch_messages * publisher.share)):
                self.messages += 1
                sample = make_sample(
                    rng,
                    self.messages,
                    root=publisher.root,
                    publisher=publisher.name.encode(),
                    version=publisher.version,
                    qos_max=2,
                )
                self._expect(sample)
                written.append(publisher.encode(sample, rng))
            publisher.client.send(b"".join(written))
        if roams:
            await asyncio.sleep(0)
            for reader in self.roaming:
                await reader.client.lose()
                reader.client.answers = True
                await reader.connect(clean_start=False)
        for node in (self.root, self.middle, self.leaf):
            await self._leave(node)
        await self._settle()
        if not pauses:
            self.slow.client.resume()
        if self._batches % KEPT_BATCHES == 0:
            for reader in self.readers:
                reader.forget(self.messages - KEPT_BATCHES * self.batch_messages)
        if self._batches % 10 == 0 and not self.findings:
            await self._join(rng.choice((self.root, self.middle, self.leaf)), version=rng.choice((4, 5)))

    def _expect(self, sample: Sample) -> None:
        self.ledger.add(sample)
        for reader in self.readers:
            if not sample.topic.startswith(b"own/") or reader.node is not self.root:
                reader.expect(sample)

    async def _leave(self, node: LiveNode) -> None:
        """Connect with a Will Message, and be gone without a DISCONNECT."""
        self.messages += 1
        name = b"will-" + node.name.encode()
        sample = make_sample(self._rng, self.messages, root=b"fz", publisher=name, version=5, qos_max=2)
        if sample.is_refused:
            return
        self._expect(sample)
        will = Packet(Kind.PUBLISH, 0, 0, sample.properties, 0, sample.topic, sample.payload, sample.qos, sample.retain)
        client = Client(f"will at {node.name}", b"will", version=5, take=lambda packet: None)
        try:
            await client.connect(node.port, will=will)
        except AssertionError as error:
            self.findings.append(f"{error}, with {sample}")
            return
        await client.lose()
        self.findings += client.findings

    async def _settle(self) -> None:
        """Wait until everything was answered and has come to all readers."""
        end = time.monotonic() + DEADLINE_S
        wrong: list[tuple[str, Counter[int], Sample]] = []
        while True:
            for publisher in self.publishers:
                wrong += [(publisher.client.name, publisher.refused, sample) for sample in publisher.settle()]
                self.findings += publisher.client.findings
            for reader in self.readers:
                self.findings += reader.all_findings()
            gone = [client.name for client in self._clients() if client.is_closed]
            if gone and not self.findings:
                self.findings.append(f"connections that the node ended: {gone}")
            if wrong and not self.findings:
                self.findings.append(f"refused, or not, {len(wrong)} in all: {wrong[0]}")
            is_done = not any(one.waiting for one in self.publishers) and not any(one.missing for one in self.readers)
            if is_done or self.findings:
                return
            if time.monotonic() > end:
                self.findings += self._absent()
                return
            await asyncio.sleep(0.005)

    def _absent(self) -> Iterator[str]:
        for publisher in self.publishers:
            if publisher.waiting:
                yield f"{publisher.client.name}: {len(publisher.waiting)} messages without an answer"
        for reader in self.readers:
            if reader.missing:
                number = min(reader.missing)
                samples = [one for batch in self.ledger._batches for one in batch if one.number == number]
                yield f"{reader.client.name}: {len(reader.missing)} messages did not come, the first {samples}"

    def _wanted(self, node: LiveNode) -> dict[bytes, int]:
        return {
            topic: sample.number
            for topic, sample in self.ledger.latest.items()
            if node is not self.root or not topic.startswith(b"own/")
        }

    async def _look_at_slow_ones(self) -> None:
        """Compare what slow readers know in the end with the last values."""
        self.slow.client.resume()
        if not self.findings:
            await self._await_state(self.slow)

    async def _join(self, node: LiveNode, *, version: int) -> None:
        """Subscribe anew, and compare the retained values with the last ones."""
        if self.findings:
            return
        subscriptions = (Subscription(b"fz/r", 1, as_published=True), Subscription(b"own/r", 2))
        reader = Reader(f"joining-{version}", node, self.ledger, subscriptions, version=version)
        await reader.connect()
        await self._await_state(reader)
        self._joined += reader.received
        await reader.client.lose()

    async def _await_state(self, reader: Reader) -> None:
        wanted = self._wanted(reader.node)
        end = time.monotonic() + DEADLINE_S
        while reader.state != wanted and not reader.all_findings():
            if time.monotonic() > end:
                differing = {topic for topic, number in wanted.items() ^ reader.state.items()}
                some = [(one, wanted.get(one), reader.state.get(one)) for one in list(differing)[:5]]
                self.findings.append(f"{reader.client.name}: {len(differing)} other last values: {some}")
                return
            await asyncio.sleep(0.005)
        self.findings += reader.all_findings()

    async def _restart(self) -> None:
        """Start all nodes again, and compare the retained values with the last ones."""
        for client in self._clients():
            client.abort()
        for node in (self.leaf, self.middle, self.root):
            await asyncio.to_thread(node.stop)
        for node in (self.root, self.middle, self.leaf):
            await node.begin()
        for node in (self.root, self.middle, self.leaf):
            for version in (4, 5):
                await self._join(node, version=version)


@contextmanager
def chain_of_nodes(directory: Path, *, seed: int) -> Iterator[Campaign]:
    """Give a campaign against three nodes that were started for it, and end them."""
    settings = QUICK + "heartbeat_s = 1.0\n"
    own = {
        "connect_timeout_s": "60.0",  # a busy machine may have stopped a node for as long as the default
        "sys_interval_s": "0",
        "write_buffer_high_bytes": "65536",
        "write_buffer_low_bytes": "16384",
    }
    server = "".join(f"{key} = {value}\n" for key, value in own.items())
    disc = '[retained]\nstorage = "{}"\n'
    root = LiveNode(directory, role="primary", name="root", settings=server + disc.format("disc"), log=False)
    down = selector("fz/#", qos=2, writes="forward")
    middle = LiveNode(
        directory,
        role="secondary",
        name="middle",
        links=link(root.port, down, settings=settings),
        settings=server + disc.format("disc_only"),
        log=False,
    )
    leaf = LiveNode(
        directory,
        role="secondary",
        name="leaf",
        links=link(middle.port, down, selector("own/#", qos=2), settings=settings),
        settings=server + disc.format("disc"),
        log=False,
    )
    nodes = (root, middle, leaf)
    try:
        for node in nodes:
            node.started()
        yield Campaign(root, middle, leaf, seed)
    finally:
        for node in reversed(nodes):
            node.stop()
