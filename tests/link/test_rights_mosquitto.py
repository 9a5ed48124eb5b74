"""The access rules that `fanout check --acl` prints for Mosquitto: enough for everything, and each is missed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.cli.output.acl import AclSyntax, acl_text
from fanout.config import LinkConfig
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.selection import Selector
from tests.link.harness import Running, config_for, logging_to, running
from tests.support.mosquitto import Mosquitto, find_mosquitto, load_retained, publish_all, publisher
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]

USER = "edge #1 %u"
"""Blanks, a hash and a pattern, none of which Mosquitto may take for something else."""
SELECTOR = Selector("plant/lane 1/%c/#", writes="forward")
TOPIC = "plant/lane 1/%c/a"
NODE = "edge-1"


class Broker:
    """A Mosquitto with an `acl_file`; clients without a user may do everything."""

    def __init__(self, mosquitto: Mosquitto, rules: Path) -> None:
        self.mosquitto = mosquitto
        self._rules = rules
        self._reloads = 0

    @property
    def port(self) -> int:
        """Its port."""
        return self.mosquitto.port

    def allow(self, rules: str) -> None:
        """Put these rules in force."""
        self._reloads += 1
        canary = f"canary/{self._reloads}"  # readable by everybody as soon as the rules are in force
        self._rules.write_text(f"topic readwrite #\ntopic read $SYS/#\n{rules}\nuser canary\ntopic read {canary}\n")
        assert self.mosquitto.process is not None
        with publisher(self.port) as client:
            publish_all(client, [(canary, b"")], retain=False)
            self.mosquitto.process.send_signal(signal.SIGHUP)
            seen: list[str] = []
            with publisher(self.port, username="canary") as reader:
                reader.on_message = lambda _client, _data, message: seen.append(message.topic)
                reader.subscribe(canary, qos=1)

                def is_in_force() -> bool:
                    publish_all(client, [(canary, b"x")], retain=False)
                    return bool(seen)

                wait_until_blocking(is_in_force, what="the rules being in force")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker with one retained value in the selector and one beside it."""
    directory = tmp_path_factory.mktemp("rights")
    rules = directory / "rules"
    rules.write_text("topic readwrite #\n")
    with Mosquitto(directory, settings=[f"acl_file {rules}", "sys_interval 1"]) as mosquitto:
        load_retained(mosquitto.port, [(TOPIC, b"1"), ("beside", b"2")])
        yield Broker(mosquitto, rules)


def link_config(broker: Broker, selector: Selector = SELECTOR, **changes: Any) -> LinkConfig:
    """Return a link of that user."""
    return config_for(broker.port, selector, username=USER, **changes)


def rules_for(config: LinkConfig) -> str:
    """Return what `fanout check --acl` prints."""
    return acl_text(config, node_id=NODE, syntax=AclSyntax.MOSQUITTO)


async def forwarded(link: Running) -> ReasonCode:
    """Forward a local client's message and return the answer."""
    row: PublishRow = (TOPIC.encode(), b"1", 3, 1, b"", None, 0)
    answer = link.link.forward(row, prefix=b"")
    return await asyncio.wait_for(answer, 30) if isinstance(answer, asyncio.Future) else answer


def sentinel_of(link: Running) -> str:
    """Return the sentinel that proved the set."""
    return str(link.sink.named("complete")[-1]["detail"])


async def test_exactly_these_rules_are_enough(broker: Broker) -> None:
    """The link is live with a marker behind Mosquitto's own sentinel; heartbeats return, writes are forwarded."""
    config = link_config(broker)
    await asyncio.to_thread(broker.allow, rules_for(config))
    lines: list[dict[str, object]] = []
    async with running(config, node_id=NODE, logger=logging_to(lines)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {TOPIC: b"1"}
        assert link.status.evidence is Evidence.MARKER
        assert sentinel_of(link) == "sentinel $SYS/broker/version"
        assert await forwarded(link) == ReasonCode.SUCCESS
        await link.wait(lambda: bool(link.sink.named("heartbeat")))
        assert link.status.heartbeat_refusal == ""
        assert {line["event"] for line in lines} == {"link state", "snapshot complete"}


async def test_they_are_enough_for_a_count_of_everything(broker: Broker) -> None:
    """The selector # is confirmed by Mosquitto's count, for which its own topics are read."""
    with publisher(broker.port) as client:
        publish_all(client, [("canary/1", b"")])
    config = link_config(broker, Selector("#"), min_evidence="count")
    await asyncio.to_thread(broker.allow, rules_for(config))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        await link.wait(lambda: link.status.evidence is Evidence.COUNT)
        assert link.values() == {TOPIC: b"1", "beside": b"2"}


def without(config: LinkConfig, line: str) -> str:
    """Return the rules of a link without one of them."""
    rules = rules_for(config).splitlines()
    rules.remove(line)
    return "\n".join(rules)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"topic read fanout/control/{NODE}/plant/#", "do not come back"),
        (f"topic write fanout/control/{NODE}/plant/#", "Not authorized"),
    ],
    ids=["read", "write"],
)
async def test_without_the_control_topic_lag_is_unknown(broker: Broker, line: str, told: str) -> None:
    """The evidence is a barrier, the status says why there are no heartbeats, and the log what to allow."""
    config = link_config(broker)
    await asyncio.to_thread(broker.allow, without(config, line))
    lines: list[dict[str, object]] = []
    async with running(config, node_id=NODE, logger=logging_to(lines)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.status.evidence is Evidence.BARRIER
        assert told in link.status.heartbeat_refusal
        (warning,) = (
            one for one in lines if one["event"] == "no heartbeats, lag is unknown and a stall is not noticed"
        )
        assert "publish and read below fanout/control/" in str(warning["hint"])


async def test_without_the_version_the_link_retains_a_sentinel_of_its_own(broker: Broker) -> None:
    """The event in the log names it."""
    config = link_config(broker)
    await asyncio.to_thread(broker.allow, without(config, "topic read $SYS/broker/version"))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        assert (link.status.evidence, sentinel_of(link)) == (
            Evidence.MARKER,
            f"sentinel fanout/control/{NODE}/plant/fence",
        )


async def test_without_the_right_to_write_a_forwarded_message_is_refused(broker: Broker) -> None:
    """The publisher is told, and nothing changes."""
    config = link_config(broker)
    await asyncio.to_thread(broker.allow, without(config, f"topic write {SELECTOR.filter}"))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        assert await forwarded(link) == ReasonCode.NOT_AUTHORIZED


async def test_without_the_right_to_read_an_empty_set_is_doubted(broker: Broker) -> None:
    """Mosquitto grants the subscription and sends nothing: the status and a warning say that it may be unreadable."""
    config = link_config(broker)
    await asyncio.to_thread(broker.allow, without(config, f"topic read {SELECTOR.filter}"))
    lines: list[dict[str, object]] = []
    async with running(config, node_id=NODE, logger=logging_to(lines)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {}
        assert link.status.selectors[0].maybe_unreadable
        (warning,) = (one for one in lines if one["event"] == "retained set is empty, or not readable")
        assert "access rules" in str(warning["hint"])


async def test_without_the_count_an_empty_set_is_doubted_all_the_same(broker: Broker) -> None:
    """Where there is nothing, the count would not show that either, since it is of all topics."""
    config = link_config(broker, Selector("nothing/here/#"))
    await asyncio.to_thread(broker.allow, without(config, "topic read $SYS/broker/retained messages/count"))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.status.selectors[0].maybe_unreadable


async def test_rights_granted_while_the_link_is_live_are_found(broker: Broker) -> None:
    """The evidence becomes a marker in the same epoch: at once when an operator says so."""
    config = link_config(broker, snapshot_quiet_s=0.5)
    own = (f"user {USER}", f"topic read {SELECTOR.filter}", f"topic write {SELECTOR.filter}")
    await asyncio.to_thread(broker.allow, "\n".join(own))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        assert sentinel_of(link) != "sentinel $SYS/broker/version"
        assert "is two-pass, weaker than min_evidence" in (link.status.not_ready_reason or "")
        epoch = link.status.epoch
        await asyncio.to_thread(broker.allow, rules_for(config))
        link.link.retry()
        await link.wait(lambda: link.status.evidence is Evidence.MARKER)
        await link.wait(lambda: link.status.ready)
        assert (link.status.epoch, link.values()) == (epoch, {TOPIC: b"1"})
        await link.wait(lambda: bool(link.sink.named("heartbeat")))


async def test_a_primary_that_closes_at_a_denied_message_gets_none(tmp_path: Path) -> None:
    """Mosquitto with `max_queued_messages 0` ends the connection after such a PUBACK; the link is ready without."""
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite #\n")
    with Mosquitto(tmp_path, settings=[f"acl_file {rules}", "max_queued_messages 0"]) as mosquitto:
        load_retained(mosquitto.port, [(TOPIC, b"1")])
        broker = Broker(mosquitto, rules)
        config = link_config(broker)
        await asyncio.to_thread(broker.allow, without(config, f"topic write fanout/control/{NODE}/plant/#"))
        lines: list[dict[str, object]] = []
        async with running(config, node_id=NODE, logger=logging_to(lines)) as link:
            await link.wait(lambda: link.status.ready)
            assert (link.status.evidence, link.values()) == (Evidence.BARRIER, {TOPIC: b"1"})
            assert "closes the connection" in link.status.heartbeat_refusal
            warnings = [one for one in lines if str(one["event"]).startswith("no heartbeats")]
            assert "fanout check --acl" in str(warnings[-1]["hint"])


async def test_a_right_to_publish_that_goes_and_comes_back(broker: Broker) -> None:
    """A refused heartbeat calls for an audit: other rights may be gone too. Heartbeats come back once granted."""
    config = link_config(broker, heartbeat_s=0.2, audit_interval_s=0.0, sample_topics=0)
    await asyncio.to_thread(broker.allow, rules_for(config))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        rules = without(config, f"topic write fanout/control/{NODE}/plant/#")
        await asyncio.to_thread(broker.allow, rules.replace(f"topic read {SELECTOR.filter}\n", ""))
        await link.wait(lambda: link.status.unconfirmed > 0)
        assert not link.status.ready
        assert "Not authorized" in link.status.heartbeat_refusal
        await asyncio.to_thread(broker.allow, rules_for(config))
        await link.wait(lambda: not link.status.heartbeat_refusal)


async def test_a_user_that_loses_all_rights_is_told_of_rights(broker: Broker) -> None:
    """Not even the sentinel comes, so the audit that follows fails, and says what to compare."""
    config = link_config(broker, heartbeat_s=0.2, sample_topics=0)
    await asyncio.to_thread(broker.allow, rules_for(config))
    async with running(config, node_id=NODE) as link:
        await link.wait_state(LinkState.LIVE)
        await asyncio.to_thread(broker.allow, f"user {USER}")
        await link.wait(lambda: "fanout check --acl" in (link.status.reason or ""))
        assert link.values() == {TOPIC: b"1"}
