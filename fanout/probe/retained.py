"""Checks of retained messages: delivery by SUBSCRIBE, flags, clearing, expiry."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

from aiomqtt import MqttError
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes

from fanout.probe.client import ProbeClient, properties
from fanout.probe.ground import PATIENCE_S, Ground
from fanout.probe.results import Result, failed, not_available, not_permitted, nothing_to_test, passed

__all__ = [
    "check_clear_forwarded",
    "check_clear_removes",
    "check_control_message",
    "check_control_message_bridge",
    "check_expiry_counted_down",
    "check_expiry_removes",
    "check_no_local",
    "check_only_matching",
    "check_properties",
    "check_retain_handling",
    "check_retain_on_live",
    "check_retained_count",
    "check_retained_message",
    "check_set_again",
    "check_wildcard_hash",
    "check_wildcard_plus",
    "try_control_topic",
]

_TOPICS: Final = ("set/a", "set/b", "set/b/c")
"""Topics of the small checks, below the root."""
_LONG_EXPIRY_S: Final = 600
_SHORT_EXPIRY_S: Final = 1
_EXPIRY_WAIT_S: Final = 3.0
"""Time after which one message has expired and the other must have a lower interval."""
_EXPIRY_TOLERANCE_S: Final = 2.5
"""Tolerance for rounding at both ends and the transfer; less than the elapsed time."""
_NAME_AND_VALUE: Final = ("fanout-probe", "1")
_COUNT_TEXT_MAX: Final = 80
_RETAINED_COUNT: Final = "$SYS/broker/retained messages/count"
_FAILURE: Final = 0x80


async def check_control_message(ground: Ground) -> Result:
    """Publish a message to a topic of our own that is subscribed, as a link does with its control topic."""
    return await try_control_topic(ground, ground.topic("control"))


async def try_control_topic(ground: Ground, topic: str) -> Result:
    """Publish a message to a topic that is subscribed, and look whether it comes back."""
    async with ground.client() as client:
        if (await client.subscribe(topic, qos=1))[0] >= _FAILURE:
            return not_permitted(f"SUBACK refuses {topic}")
        try:
            code = await client.publish(topic, b"1")
        except MqttError:
            return not_permitted(f"a message to {topic} is not acknowledged, or ends the connection")
        if code >= _FAILURE:
            return not_permitted(f"PUBACK refuses a message to {topic} (0x{code:02X})")
        came = await client.message(topic, timeout_s=PATIENCE_S)
    return passed("it came back") if came else not_permitted(f"a message to {topic} does not come back")


async def check_control_message_bridge(ground: Ground) -> Result:
    """Do the same with the bridge bit, as a link over MQTT 3.1.1 does: not every server returns messages to it."""
    topic = ground.topic("control")
    async with ground.client(bridge=True) as client:
        await client.subscribe(topic, qos=1)
        await client.publish(topic, b"1")
        came = await client.message(topic, timeout_s=PATIENCE_S)
    return passed("it comes back") if came else failed("it does not come back")


async def check_retained_message(ground: Ground) -> Result:
    """Publish retained messages, and read one by its Topic Name."""
    if ground.connack.get("RetainAvailable", 1) == 0:
        return not_available("CONNACK: Retain Available 0")
    async with ground.client() as client:
        if not await ground.retain(client, [(ground.topic(name), b"1") for name in _TOPICS]):
            return not_permitted("PUBACK refuses a retained message")
        await _plant_expiring(ground, client)
    return await _read_set(ground, "set/a", "set/a")


async def check_wildcard_hash(ground: Ground) -> Result:
    """Read retained messages by a filter that ends with `#`."""
    return await _read_set(ground, "set/#", *_TOPICS)


async def check_wildcard_plus(ground: Ground) -> Result:
    """Read retained messages by a filter that ends with `+`."""
    return await _read_set(ground, "set/+", "set/a", "set/b")


async def check_only_matching(ground: Ground) -> Result:
    """Subscribe to one topic, and look whether others come."""
    topic = ground.topic("set/a")
    async with ground.client() as client:
        await client.subscribe(topic)
        came = await client.message(topic, timeout_s=PATIENCE_S)
        others = [one.topic for one in client.messages() if one.topic != topic]
    if others:
        return failed(f"others come too, as {others[0]}")
    return passed("nothing else comes") if came else nothing_to_test("nothing comes at all")


async def check_set_again(ground: Ground) -> Result:
    """Subscribe a second time in the same session, as an audit does."""
    topic = ground.topic("set", "a")
    async with ground.client() as client:
        await client.subscribe(topic)
        await client.message(topic, timeout_s=PATIENCE_S)
        before = len(client.arrivals)
        await client.subscribe(topic)
        again = await client.message(topic, since=before, timeout_s=PATIENCE_S)
    return passed("a second SUBSCRIBE brings them again") if again else failed("a second SUBSCRIBE brings nothing")


async def check_retain_handling(ground: Ground) -> Result:
    """Subscribe with Retain Handling 2, which asks for no retained messages."""
    unwanted, control = ground.topic("set", "a"), ground.topic("control")
    async with ground.client() as client:
        await client.subscribe(unwanted, retain_handling=2)
        # A message of our own ends the wait: what comes before it was sent for the SUBSCRIBE.
        await client.subscribe(control, qos=1)
        await client.publish(control, b"2")
        await client.message(control, timeout_s=PATIENCE_S)
        came = any(one.topic == unwanted for one in client.messages())
    return failed("retained messages come all the same") if came else passed("Retain Handling 2 brings none")


async def check_retain_on_live(ground: Ground) -> Result:
    """Read the RETAIN flag of live updates: Retain As Published, or the bridge bit over MQTT 3.1.1."""
    asked = "Retain As Published" if ground.version == 5 else "the bridge bit"
    kept, plain = ground.topic("flags", "retained"), ground.topic("flags", "plain")
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(ground.client())
        try:
            client = await stack.enter_async_context(ground.client(bridge=ground.version == 4))
        except MqttError as error:
            return failed(f"a connection with {asked} is not accepted: {error}")
        await client.subscribe(ground.topic("flags", "+"), qos=1)
        await ground.retain(publisher, [(kept, b"1")])
        await publisher.publish(plain, b"1")
        await client.until(lambda: {kept, plain} <= {one.topic for one in client.messages()}, PATIENCE_S)
        flags = {one.topic: one.retain for one in client.messages()}
    if kept not in flags or plain not in flags:
        return failed(f"with {asked} live updates do not come")
    if flags[plain]:
        return failed(f"with {asked} RETAIN is 1 for a message that is not retained")
    if not flags[kept]:
        return failed(f"with {asked} RETAIN is 0 for a retained one")
    return passed(f"{asked} gives RETAIN as published")


async def check_no_local(ground: Ground) -> Result:
    """Publish to a topic that the same client has subscribed to with No Local."""
    own, other = ground.topic("local", "own"), ground.topic("local", "other")
    async with ground.client() as client, ground.client() as publisher:
        await client.subscribe(ground.topic("local", "+"), qos=1, no_local=True)
        await client.publish(own, b"1")
        await publisher.publish(other, b"1")
        # Ours is published first: when the other one is there, ours would be too.
        came = await client.message(other, timeout_s=PATIENCE_S)
        returned = any(one.topic == own for one in client.messages())
    if came is None:
        return failed("messages of others do not come either")
    return failed("own messages come back") if returned else passed("own messages do not come back")


async def check_clear_forwarded(ground: Ground) -> Result:
    """Clear a retained message while somebody has subscribed to it."""
    topic = ground.topic("set", "a")
    async with ground.client() as client, ground.client() as publisher:
        await client.subscribe(topic, qos=1)
        await client.message(topic, timeout_s=PATIENCE_S)
        before = len(client.arrivals)
        await ground.clear(publisher, [topic])
        came = await client.message(topic, since=before, timeout_s=PATIENCE_S)
    if came is None:
        return failed("subscribers get nothing")
    if came.payload:
        return failed("subscribers get something else than a message without payload")
    return passed(f"subscribers get a message without payload, RETAIN {int(came.retain)}")


async def check_clear_removes(ground: Ground) -> Result:
    """Read a cleared message."""
    topic = ground.topic("cleared")
    async with ground.client() as client:
        if not await ground.retain(client, [(topic, b"1")]):
            return not_permitted("PUBACK refuses a retained message")
        await ground.clear(client, [topic])
    came = await _read(ground, topic, patience_s=0.5)
    return failed("it is still sent") if came else passed("a later SUBSCRIBE brings nothing")


async def check_properties(ground: Ground) -> Result:
    """Publish a message with a User Property and a Content Type, and read it live and as retained."""
    topic = ground.topic("properties")
    sent = properties(PacketTypes.PUBLISH, UserProperty=_NAME_AND_VALUE, ContentType="text/plain")
    async with ground.client() as client, ground.client() as publisher:
        await client.subscribe(topic, qos=1)
        await ground.retain(publisher, [(topic, b"1")], message_properties=sent)
        live = await client.message(topic, timeout_s=PATIENCE_S)
    retained = await _read(ground, topic)
    lacking = [name for name, came in (("live", live), ("retained", retained)) if not _has_properties(came)]
    if lacking:
        return failed(f"User Properties or Content Type are missing: {' and '.join(lacking)}")
    return passed("User Properties and Content Type come, live and retained")


async def check_expiry_counted_down(ground: Ground) -> Result:
    """Read a retained message some seconds after it was published with a Message Expiry Interval."""
    await asyncio.sleep(_EXPIRY_WAIT_S - ground.elapsed_s())
    came = await _read(ground, ground.topic("expiry", "long"))
    elapsed_s = ground.elapsed_s()
    if came is None:
        return failed(f"a message that expires in {_LONG_EXPIRY_S} s is gone")
    left_s = getattr(came.properties, "MessageExpiryInterval", None)
    if left_s is None:
        return failed("the retained message comes without its Message Expiry Interval")
    seen = f"{_LONG_EXPIRY_S} s are {left_s} s after {elapsed_s:.0f} s"
    return passed(seen) if abs(_LONG_EXPIRY_S - elapsed_s - left_s) <= _EXPIRY_TOLERANCE_S else failed(seen)


async def check_expiry_removes(ground: Ground) -> Result:
    """Read a retained message that has expired."""
    await asyncio.sleep(_EXPIRY_WAIT_S - ground.elapsed_s())
    came = await _read(ground, ground.topic("expiry", "short"), patience_s=0.5)
    return failed("it is still sent") if came else passed("an expired message is not sent")


async def check_retained_count(ground: Ground) -> Result:
    """Read how many retained messages the primary says it has."""
    came = await _read(ground, _RETAINED_COUNT, patience_s=1.0)
    if came is None:
        return not_available(f"no {_RETAINED_COUNT}")
    return passed(f"$SYS says {bytes(came.payload[:_COUNT_TEXT_MAX]).decode(errors='replace')}")


async def _plant_expiring(ground: Ground, client: ProbeClient) -> None:
    """Publish the messages for the checks of expiry."""
    ground.expiring_since = time.monotonic()
    if ground.version == 5:
        for name, seconds in (("long", _LONG_EXPIRY_S), ("short", _SHORT_EXPIRY_S)):
            expiring = properties(PacketTypes.PUBLISH, MessageExpiryInterval=seconds)
            await ground.retain(client, [(ground.topic("expiry", name), b"1")], message_properties=expiring)


async def _read(ground: Ground, topic: str, *, patience_s: float = PATIENCE_S) -> MQTTMessage | None:
    """Return the retained message that a SUBSCRIBE of a new client brings for one topic; None for none."""
    async with ground.client() as client:
        await client.subscribe(topic)
        return await client.message(topic, timeout_s=patience_s)


async def _read_set(ground: Ground, topic_filter: str, *topics: str) -> Result:
    """Subscribe with a new client, and check that these topics come, all of them retained."""
    topic_filter, wanted = ground.topic(topic_filter), {ground.topic(topic) for topic in topics}
    async with ground.client() as client:
        await client.subscribe(topic_filter)
        await client.until(lambda: wanted <= {one.topic for one in client.messages()}, PATIENCE_S)
        came = client.messages()
    found = [one for one in came if one.topic in wanted]
    count = len({one.topic for one in found})
    if count < len(wanted):
        return failed(f"{count} of {len(wanted)} came")
    if not all(one.retain for one in found):
        return failed("they come with RETAIN 0")
    return passed(f"{count} of {len(wanted)} came, RETAIN 1")


def _has_properties(message: MQTTMessage | None) -> bool:
    told = None if message is None else message.properties
    user = getattr(told, "UserProperty", ())
    return _NAME_AND_VALUE in user and getattr(told, "ContentType", None) == "text/plain"
