"""An upgrade: what an older version left on disk, and a pool whose members are of two versions.

`tests/support/former.py` made the data directories, with the code of that time.
"""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from pathlib import Path

import pytest

from fanout.mqtt.packets import Ack, PacketType
from fanout.replica.update import content_digest
from fanout.replog.files.columns import signed
from tests.cli.processes import run_fanout
from tests.support.durable import DISC, come_back, leave_session, publish_numbers, start_pool, take_numbers
from tests.support.former import DATA, FOR_EVER, FORMERS, NUMBERS, VALUES, code_of, environment_of
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import Nodes, read_events, read_updates
from tests.support.raw_reader import read_retained


@pytest.mark.parametrize("commit", FORMERS)
async def test_a_node_goes_on_with_what_an_older_version_left(commit: str, nodes: Nodes) -> None:
    """Values, a session with a handshake that is not finished, and the log, all from a process that was killed."""
    with tarfile.open(DATA / f"{commit}.tar.gz") as archive:
        archive.extractall(nodes.directory, filter="data")
    hub = await nodes.primary(name="hub", settings=FORMERS[commit]).begin()
    assert read_retained(hub.port, "plant/#") == VALUES
    if "sessions" in FORMERS[commit]:
        async with await come_back(hub.port, "stays", properties=FOR_EVER) as client:
            assert client.connack.session_present
            release = await client.receive()
            assert isinstance(release, Ack)
            assert release.type is PacketType.PUBREL
            client.send(Ack(PacketType.PUBCOMP, release.packet_id))
            assert await take_numbers(client, until=NUMBERS[-1]) == list(NUMBERS[1:])
    await asyncio.to_thread(hub.stop)
    verified = await asyncio.to_thread(run_fanout, "log", "verify", str(hub.log_directory))
    assert (verified.returncode, verified.stderr) == (0, "")
    updates = read_updates(hub.log_directory)
    numbers = [row["digest"] for row in updates if row["topic"] == "plant/n"]
    assert numbers == [signed(content_digest(b"plant/n", b"%d" % number)) for number in NUMBERS]
    _, killed, now = sorted({row["node_epoch"] for row in updates})
    assert {row["topic"] for row in updates if row["node_epoch"] == killed} >= VALUES.keys()
    gaps = [json.loads(row["detail"]) for row in read_events(hub.log_directory) if row["event"] == "gap"]
    assert [(gap["reason"], gap["node_epoch"]) for gap in gaps] == [("crash", killed)]
    assert now > killed


@pytest.mark.long
@pytest.mark.mosquitto
async def test_a_pool_of_an_older_protocol_is_upgraded_member_by_member(
    patient: Mosquitto, nodes: Nodes, tmp_path: Path
) -> None:
    """Members of two versions say so of each other; sessions on disk go on at their member, with all that waited."""
    code = tmp_path / "code"
    code.mkdir()
    if not code_of("0abe60ba", code):
        pytest.skip("this checkout has no history: the code of the older version is not there")
    members = await start_pool(patient, nodes, sections=DISC, environment=environment_of(code))
    for member in members:
        for qos in (1, 2):
            await leave_session(member, f"{member.name}-qos-{qos}", qos=qos)
    await publish_numbers(patient, 0, 10)
    for count, member in enumerate(members, start=1):
        await asyncio.to_thread(member.stop)
        member.environment = dict(os.environ)
        await member.begin()
        await publish_numbers(patient, 10 * count, 10 * count + 10)
        others = [one for one in member.document("/v1/pool")["members"] if one["node"] != member.name]
        assert {one["failure"] for one in others if not one["reachable"]} <= {
            "it speaks another version of the pool's protocol"
        }
    for number, member in enumerate(members):
        for qos in (1, 2):
            async with await come_back(members[number - 1].port, f"{member.name}-qos-{qos}") as client:
                assert client.connack.session_present
                assert await take_numbers(client, until=39) == list(range(40))
    assert "sessions kept over the restart" in members[-1].log_text()
