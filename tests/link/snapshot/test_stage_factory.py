"""What each stage of a session is given."""

from __future__ import annotations

import pytest

from fanout.link.ingest.convert import Converter
from fanout.link.model.evidence import Order
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.peer import RemotePeer
from fanout.link.protocol.sender import OutgoingMessage, PacketSender, PrimaryLimits
from fanout.link.snapshot.capability_check import SERVER_FENCE
from fanout.link.snapshot.stage_factory import StageFactory
from fanout.link.snapshot.sys_count import SysCount
from fanout.mqtt.delivery import Inbound
from fanout.replica.store import Replica
from fanout.replica.update import Stamp
from tests.link.fake_primary import make_config

STAMP = Stamp("root", 1, 2, 3)


class Parts:
    """A stage factory and its collaborators."""

    def __init__(self, *, version: int = 5) -> None:
        """Prepare for a link whose primary has granted one message in flight."""
        config = make_config(version=version)
        self.sender = PacketSender(config, node_id="edge-1")
        self.sender.accept(PrimaryLimits(receive_maximum=1))
        self.control = ControlChannel("fanout/control", node_id="edge-1", link="plant", nonce=7, heartbeat_s=5.0)
        self.primary = RemotePeer(config, node_id="edge-1", sender=self.sender)
        replica, prefix = Replica(selectors=config.selectors), self.control.prefix
        self.stage_factory = StageFactory(
            config,
            replica=replica,
            converter=Converter(config.selectors, replica=replica, control_prefix=prefix, inbound=Inbound()),
            sender=self.sender,
            control=self.control,
            primary=self.primary,
            count=SysCount(config.selectors, control_prefix=prefix, sender=self.sender),
        )


@pytest.mark.parametrize(
    ("permitted", "fence", "node", "checked"),
    [
        (None, None, None, False),
        (None, b"fence", None, False),
        (True, None, None, False),
        (False, b"fence", None, True),
        (True, None, "root", True),
    ],
)
def test_the_capability_check_is_made_once_an_epoch(
    permitted: bool | None, fence: bytes | None, node: str | None, checked: bool
) -> None:
    """It is over when it is known whether messages come back, and what ends a retained set."""
    parts = Parts()
    parts.control.restore(permitted=permitted)
    parts.primary.fence, parts.primary.node = fence, node
    assert parts.stage_factory.is_checked is checked


@pytest.mark.parametrize(("node", "asks"), [(None, True), ("root", False)])
def test_a_fanout_node_needs_no_fence(node: str | None, asks: bool) -> None:
    """Its order is known."""
    parts = Parts()
    parts.primary.node = node
    parts.stage_factory.capability_check().begin(1.0)
    assert (SERVER_FENCE in parts.sender.take()) is asks


def test_a_comparison_makes_a_fence_of_the_links_own_anew() -> None:
    """A snapshot has just made it in its capability check."""
    parts = Parts()
    parts.primary.learn(parts.control.fence_topic, Order.LIKELY, "why", is_mosquitto=False)
    parts.stage_factory.retained_pass(compare=False, paced=False, now=1.0)
    assert not parts.sender.has_output
    retained_pass = parts.stage_factory.retained_pass(compare=True, paced=True, now=1.0)
    assert parts.control.fence_topic in parts.sender.take()
    assert (retained_pass.order, retained_pass.why) == (Order.LIKELY, "why")


@pytest.mark.parametrize(("version", "fence", "full"), [(5, b"other", False), (4, None, False), (5, None, True)])
def test_a_fence_stays_as_it_is(version: int, fence: bytes | None, full: bool) -> None:
    """The primary's own; with MQTT 3.1.1, where it does not expire; and while nothing can be published."""
    parts = Parts(version=version)
    parts.primary.fence = fence or parts.control.fence_topic
    if full:
        parts.sender.publish(OutgoingMessage(b"t", b""), now=1.0)
        parts.sender.take()
    parts.stage_factory.retained_pass(compare=True, paced=False, now=1.0)
    assert not parts.sender.has_output


def test_what_came_back_before_a_pass_is_remembered() -> None:
    """By its stamp, later than which an update happened during the pass."""
    parts = Parts()
    parts.stage_factory.retained_pass(compare=True, paced=False, now=1.0)
    assert parts.stage_factory.stamp_before is None
    parts.control.receive(parts.control.send(1.0), now=1.0, stamp=STAMP)
    parts.stage_factory.retained_pass(compare=True, paced=False, now=1.0)
    assert parts.stage_factory.stamp_before == STAMP


def test_what_is_pending_is_waited_for() -> None:
    """The stage asks for it with PINGREQ."""
    parts = Parts()
    parts.stage_factory.pending().begin(1.0)
    assert parts.sender.take() == b"\xc0\x00"


def test_an_own_fence_is_not_made_anew_where_retained_messages_are_not_taken() -> None:
    """The primary may have another configuration than when the fence was made; it would close the connection."""
    parts = Parts()
    parts.primary.fence = parts.control.fence_topic
    parts.sender.accept(PrimaryLimits(retain_available=False))
    parts.stage_factory.retained_pass(compare=True, paced=False, now=1.0)
    assert not parts.sender.has_output
    parts.sender.accept(PrimaryLimits())
    parts.stage_factory.retained_pass(compare=True, paced=False, now=1.0)
    assert parts.sender.has_output
