"""Sampling beside a real Mosquitto: what it hides, changes or refuses behind a live link's back is seen at once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fanout.link.model.status import LinkStatus
from tests.link.harness import Running, config_for, logging_to, running
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

HEARTBEAT_S = 0.2
LINES = 100
SENSORS = 20
VALUES = [
    (f"plant/{line:03d}/{sensor}", b"%d %d" % (line, sensor)) for line in range(LINES) for sensor in range(SENSORS)
]


@dataclass
class Primary:
    """A Mosquitto with 2,000 topics, an access file, and a link to it that is ready."""

    mosquitto: Mosquitto
    acl: Path
    link: Running
    lines: list[dict[str, object]]
    """What the link logs."""

    async def allow(self, lines: Iterable[int]) -> None:
        """Let the link's user read some lines of the plant only, once this returns."""
        write_acl(self.acl, [f"plant/{line:03d}/#" for line in lines])
        reloaded = self._reloads()
        assert self.mosquitto.process is not None
        self.mosquitto.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: self._reloads() > reloaded, 10, what="Mosquitto reading its files again")

    def _reloads(self) -> int:
        return (self.mosquitto.directory / "mosquitto.log").read_text().count("Reloading config")

    async def samples_until_audit(self) -> int:
        """Return the number of samples from now until one calls for an audit that ends."""
        before = self.status.sampling.samples_total
        await self.link.wait(lambda: self.status.sampling.audits_total and self.last_reason == "sample")
        return self.status.sampling.samples_total - before

    @property
    def status(self) -> LinkStatus:
        """The link's status."""
        return self.link.status

    @property
    def last_reason(self) -> str:
        """What called for the newest audit."""
        last = self.status.newest_audit
        return "" if last is None else last.reason


def write_acl(path: Path, readable: Iterable[str]) -> None:
    """Write an access file: who loads may write, and `edge` may read some filters."""
    read = "".join(f"topic read {each}\n" for each in readable)
    path.write_text(
        "topic readwrite plant/#\nuser other\ntopic readwrite plant/#\n"
        f"user edge\ntopic read $SYS/#\ntopic readwrite fanout/#\n{read}"
    )


@asynccontextmanager
async def ready(directory: Path, *settings: str, **changes: object) -> AsyncIterator[Primary]:
    """Give a primary with a link that is ready."""
    acl = directory / "acl"
    write_acl(acl, ["plant/#"])
    lines: list[dict[str, object]] = []
    with Mosquitto(directory, settings=[f"acl_file {acl}", *settings]) as mosquitto:
        if "use_username_as_clientid true" in settings:
            with publisher(mosquitto.port, username="other") as client:
                publish_all(client, VALUES[:20])
        else:
            assert load_retained(mosquitto.port, VALUES) == len(VALUES)
        config = config_for(
            mosquitto.port,
            username="edge",
            **{"sample_topics": 16, "heartbeat_s": HEARTBEAT_S, "audit_interval_s": 0.0, **changes},
        )
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait(lambda: link.status.ready)
            yield Primary(mosquitto, acl, link, lines)


def warnings(lines: list[dict[str, object]]) -> list[object]:
    """Return the log lines about samples that differ."""
    return [line["event"] for line in lines if "sample" in str(line["event"])]


async def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    """Values change all the time; six samples begin no audit, and the link's session is as it was."""
    async with ready(tmp_path) as primary:
        for number in range(10):
            load_retained(primary.mosquitto.port, [(topic, b"%d" % number) for topic, _ in VALUES[number::7]])
            before = primary.status.sampling.samples_total
            await primary.link.wait(lambda before=before: primary.status.sampling.samples_total >= before + 2)
        sampling = primary.status.sampling
        assert (sampling.missing_total, sampling.changed_total, sampling.failed_total) == (0, 0, 0)
        assert (sampling.audits_total, sampling.off, primary.status.counters.audits_total) == (0, "", 0)
        assert sampling.topics_total >= 6 * 12
        assert sampling.last_ns > 0
        assert primary.status.counters.epochs_total == 1
        assert primary.status.counters.reconnects_total == 0


async def test_half_a_tree_that_is_hidden_is_seen_within_two_heartbeats(tmp_path: Path) -> None:
    """Mosquitto says nothing when an ACL is narrowed, and delivers half."""
    async with ready(tmp_path) as primary:
        await primary.allow(range(0, LINES, 2))
        assert await primary.samples_until_audit() <= 2
        assert primary.status.sampling.missing_total >= 3
        last = primary.status.newest_audit
        assert last is not None
        assert last.checked == len(VALUES)
        assert warnings(primary.lines)[0] == "sample of topics differs from the replica, audit follows"


async def test_values_that_changed_behind_the_links_back_are_seen(tmp_path: Path) -> None:
    """As after a restored store, or dropped messages: the audit repairs them, and local clients get them."""
    changed = VALUES[: len(VALUES) // 2]
    async with ready(tmp_path, heartbeat_s=2.0) as primary:
        await primary.link.wait(lambda: primary.status.sampling.samples_total == 1)
        primary.link.sink.clear()
        await primary.allow([])
        load_retained(primary.mosquitto.port, [(topic, b"new") for topic, _ in changed])
        await primary.allow(range(LINES))
        assert primary.link.values() == dict(VALUES)
        assert await primary.samples_until_audit() == 1
        sampling, last = primary.status.sampling, primary.status.newest_audit
        assert (sampling.missing_total, sampling.changed_total > 3) == (0, True)
        assert last is not None
        assert (last.changed, last.removed) == (len(changed), 0)
        assert primary.link.values() == {**dict(VALUES), **{topic: b"new" for topic, _ in changed}}
        assert {update[0].decode() for update in primary.link.sink.dispatched()} == {topic for topic, _ in changed}


async def test_a_password_that_is_no_longer_valid_is_seen(tmp_path: Path) -> None:
    """The link's own connection would go on; whoever needs a new one is refused, and an audit follows."""
    passwords, secret = tmp_path / "passwords", tmp_path / "secret"
    set_password(passwords, "one")
    secret.write_text("one")
    async with ready(tmp_path, f"password_file {passwords}", password_file=secret) as primary:
        await primary.link.wait(lambda: primary.status.sampling.samples_total >= 1)
        secret.write_text("two")  # the same as a password changed at a primary that keeps its connections
        await primary.link.wait(lambda: primary.last_reason == "sample")
        assert primary.status.sampling.failed_total == 1
        assert "could not be asked by name" in primary.status.sampling.off
        assert primary.status.ready
        assert "primary refuses the link's user on another connection, audit follows" in [
            line["event"] for line in primary.lines
        ]
        secret.write_text("one")
        before = primary.status.sampling.samples_total
        await primary.link.wait(lambda: primary.status.sampling.samples_total > before)
        assert primary.status.sampling.off == ""


async def test_a_user_name_that_is_taken_for_the_client_identifier_costs_no_session(tmp_path: Path) -> None:
    """The request by name gets the link's session, sees it, and gives it back: nothing is torn down."""
    async with ready(tmp_path, "use_username_as_clientid true") as primary:
        await primary.link.wait(lambda: "only one connection of a user" in primary.status.sampling.off)
        await primary.link.wait(lambda: primary.status.ready)
        assert primary.status.counters.epochs_total == 1
        assert primary.status.counters.reconnects_total == 2
        assert primary.link.sink.named("tear_down") == []


def set_password(path: Path, password: str) -> None:
    """Write a password file for `edge`."""
    path.write_text(f"edge:{password}\n")
    subprocess.run(["mosquitto_passwd", "-U", str(path)], check=True)
