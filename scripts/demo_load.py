"""A plant's sensors for the demonstration: a retained value per sensor, then a steady stream of updates.

Publishes with aiomqtt, a client that is not ours. When the primary goes away it waits for it and publishes
every sensor's value again, as real sensors do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

import aiomqtt
import tenacity

_RECONNECT_S = 3.0
"""How long the sensors take to come back after the primary went away."""
_KINDS = (
    ("temperature", "degC", 21.0),
    ("pressure", "bar", 4.2),
    ("vibration", "mm/s", 1.1),
    ("power", "kW", 7.5),
)


@dataclass
class Sensor:
    """One measured quantity."""

    topic: str
    unit: str
    value: float

    def payload(self) -> bytes:
        """Move the value a little, and return it as JSON."""
        self.value = round(self.value + random.gauss(0, self.value / 200), 3)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return json.dumps({"value": self.value, "unit": self.unit, "at": at}).encode()


def sensors(count: int) -> list[Sensor]:
    """Return `count` sensors, four on each machine, twenty machines on a line."""
    return [
        Sensor(f"plant/line-{number // 80 + 1}/machine-{number // 4 % 20 + 1:02}/{kind}", unit, value)
        for number in range(count)
        for kind, unit, value in [_KINDS[number % 4]]
    ]


async def publish(port: int, *, count: int, rate: int) -> None:
    """Publish every sensor once, then `rate` updates a second, until the connection ends."""
    async with aiomqtt.Client(
        "127.0.0.1", port, identifier="demo-sensors", protocol=aiomqtt.ProtocolVersion.V5
    ) as client:
        plant = sensors(count)
        for sensor in plant:
            await client.publish(sensor.topic, sensor.payload(), qos=0, retain=True)
        print(f"published {count} retained values", flush=True)
        ticks_per_s = 20
        while True:
            due = asyncio.get_running_loop().time() + 1 / ticks_per_s
            for sensor in random.choices(plant, k=rate // ticks_per_s):
                await client.publish(sensor.topic, sensor.payload(), qos=1, retain=True)
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


async def main(port: int, *, count: int, rate: int) -> None:
    """Publish for ever, connecting again whenever the primary went away."""
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(aiomqtt.MqttError), wait=tenacity.wait_fixed(_RECONNECT_S)
    ):
        with attempt:
            await publish(port, count=count, rate=rate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sensors", type=int, default=4000)
    parser.add_argument("--rate", type=int, default=300, help="updates a second")
    arguments = parser.parse_args()
    try:
        asyncio.run(main(arguments.port, count=arguments.sensors, rate=arguments.rate))
    except KeyboardInterrupt:
        sys.exit(0)
