"""The bytes of what is in flight: those of a log are the ones that each message by itself has."""

from __future__ import annotations

import random

import pytest

from fanout.durable.form.inflight_forms import InFlightForms
from fanout.durable.form.session_format import encode_in_flight
from fanout.mqtt.delivery import SendState
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import Message, WireVariant
from fanout.server.messages.shared_inflight import SharedInflight
from fanout.server.session.exported_session import ExportedInFlight
from fanout.server.session.inflight import Inflight
from fanout.server.session.session_export import ExportedMessages
from tests.server.node_in_memory import update


class Sessions:
    """Sessions that follow one log, each at its own pace."""

    def __init__(self, seed: int, *, qos: int) -> None:
        """Begin with three."""
        self.chance = random.Random(seed)
        self.qos = qos
        self.log = SharedInflight()
        self.log.qos = qos
        self.all = [Inflight(wire=WireVariant(4), bytes_max=1 << 20, counters=Counters()) for _ in range(3)]
        for one in self.all:
            one.outbound.window = 1_000
        self._number = 0

    def begin(self, packet_id: int) -> None:
        """Have all of them leave and follow anew, behind a Packet Identifier."""
        for one in self.all:
            one.disconnect()
            for held, _, state in list(one.outbound.in_flight()):
                one.outbound.acknowledge(
                    PacketType.PUBACK if state is SendState.AWAIT_PUBACK else PacketType.PUBREC, held
                )
                one.outbound.acknowledge(PacketType.PUBCOMP, held)
        self.log.begin_behind(packet_id)
        for one in self.all:
            assert one.follower.join(self.log, 1)

    def send(self) -> None:
        """Send some messages to all."""
        messages = [self._message() for _ in range(self.chance.randint(1, 5))]
        if all(self.log.end + len(messages) <= one.follower.limit for one in self.all):
            self.log.append(messages, size=50, oldest=lambda: min(one.follower.completed for one in self.all))

    def answer(self) -> None:
        """Have one of them acknowledge some messages."""
        follower = self.chance.choice(self.all).follower
        begin, end = follower.completed, self.log.end
        packet_type = PacketType.PUBACK
        if self.qos == 2:
            packet_type = self.chance.choice([PacketType.PUBREC, PacketType.PUBCOMP])
            begin, end = (follower.received, end) if packet_type is PacketType.PUBREC else (begin, follower.received)
        count = self.chance.randint(0, end - begin)
        acks = encode_acks(packet_type, [position % 65_535 + 1 for position in range(begin, begin + count)])
        assert follower.acknowledge_read(acks)[0] == len(acks)

    def _message(self) -> Message:
        self._number += 1
        expires_ns = 1 << 60 if self.chance.random() < 0.02 else 0
        one = update(b"t", b"%d" % self._number, qos=self.qos, retain=False, expires_ns=expires_ns)
        return one, self.qos, False, ()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_the_bytes_of_a_log_are_those_of_its_messages(seed: int, qos: int) -> None:
    """Whatever was sent and answered, whoever is asked for: also past the last identifier, and in a new run."""
    sessions, forms = Sessions(seed, qos=qos), InFlightForms()
    messages = ExportedMessages(now_ns=0)
    sessions.begin(65_500)
    compared = 0
    for step in range(1_000):
        sessions.chance.choice([sessions.send, sessions.answer, sessions.answer])()
        if sessions.chance.random() < 0.02:
            sessions.begin(sessions.chance.choice([7, 10, 65_500, 65_503]))
        if sessions.chance.random() < 0.6:
            continue
        forms.begin_group()
        messages = messages.later(step)
        for one in sessions.chance.sample(sessions.all, sessions.chance.randint(0, 3)):
            values = [
                ExportedInFlight(packet_id, state, None if state is SendState.AWAIT_PUBCOMP else messages.of(message))
                for packet_id, message, state in one.in_flight()
            ]
            assert forms.of(one, messages) == encode_in_flight(values)
            compared += len(values)
        assert all(len(one._forms) <= one._end - sessions.log.begin for one in forms._logs.values())
    assert compared > 1_000


def test_a_message_of_one_session_alone_is_there_too() -> None:
    """What was sent to one alone comes before what it shares."""
    sessions = Sessions(1, qos=2)
    one = sessions.all[0]
    one.outbound.send((update(b"t", b"alone", qos=2), 2, False, ()), 2, size=10)
    sessions.log.begin_behind(7)
    assert one.follower.join(sessions.log, 1)
    sessions.log.append([(update(b"t", b"shared", qos=2), 2, False, ())], size=10, oldest=lambda: 0)
    written = InFlightForms().of(one, ExportedMessages(now_ns=0))
    assert written.index(b"alone") < written.index(b"shared")
