"""`fanout log show`, `stat` and `verify`, on logs of the real writer."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.replog.read.showing import newest_rows
from fanout.replog.write.writer import LogWriter
from tests.cli.processes import run_fanout
from tests.cli.real_logs import EPOCH, RunningClock, write_primary_log, write_secondary_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the directory of a log that two nodes share."""
    write_primary_log(tmp_path, updates=10)
    write_secondary_log(tmp_path, updates=10)
    return tmp_path


def test_stat_describes_each_node(log: Path) -> None:
    """Rows, times, files and how the last run ended, one block for each node."""
    answer = run_fanout("log", "stat", str(log))
    assert (answer.returncode, answer.stderr) == (0, "")
    edge, hub = answer.stdout.split("\n\n")
    assert edge.startswith("node      edge-1\n")
    assert hub.startswith(
        "node      hub\n"
        "last run  began 2025-11-21 08:00:00.000+00:00, stopped in good order\n"
        "rows      10 updates, 3 events\n"
        "from      2025-11-21 08:00:00"
    )
    assert "\nsealed    2 files, " in hub
    assert hub.endswith("open      0 segments, 0 B\nmissing   0 rows\n")


def test_stat_json(log: Path) -> None:
    """With --json standard output is one document, numbers unrounded."""
    answer = run_fanout("log", "stat", "--json", str(log))
    assert (answer.returncode, answer.stderr) == (0, "")
    edge, hub = json.loads(answer.stdout)
    assert (edge["node"], hub["node"], hub["update_rows"], hub["missing_positions"]) == (
        "edge-1",
        "hub",
        10,
        0,
    )
    assert hub["last_run"]["clean"] is True


def test_verify_sound(log: Path) -> None:
    """A whole log: exit 0 and one line for each node."""
    answer = run_fanout("log", "verify", str(log))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == ("edge-1  sound, 17 rows in 2 files\nhub     sound, 13 rows in 2 files\n")


def test_verify_damaged(runner: CliRunner, log: Path) -> None:
    """A removed file is missing rows, a broken one is named: exit 1."""
    for path in (log / "v1" / "updates").rglob("*.parquet"):
        if "node=hub" in str(path):
            path.unlink()
        else:
            path.write_bytes(b"PAR1")
    answer = runner.invoke(app, ["log", "verify", str(log)])
    assert answer.exit_code == 1
    assert "hub     damaged" in answer.stdout
    as_json = json.loads(runner.invoke(app, ["log", "verify", "--json", str(log)]).stdout)
    assert [one["path"].endswith(".parquet") for node in as_json for one in node["problems"]] == [True]
    assert "missing: rows 2 to 11 of epoch 1763712000000000; nothing tells why" in answer.stdout
    assert ".parquet: it cannot be read" in answer.stdout


def test_verify_shows_a_gap_that_the_node_told_of(runner: CliRunner, log: Path) -> None:
    """A gap with its reason is shown and is no damage; one row is not "rows 1 to 1"."""
    for path in (log / "v1" / "events" / "node=hub").rglob("*.parquet"):
        path.unlink()
    told = LogWriter(log, node="hub", role="primary", node_epoch=EPOCH + 1, clock=RunningClock(EPOCH + 10**9))
    told.open()
    for first, last in ((1, 1), (12, 13)):
        detail = {"node_epoch": EPOCH, "first_log_pos": first, "last_log_pos": last, "rows": 1}
        told.event("gap", detail=json.dumps(detail))
    assert told.close(timeout_s=30)
    answer = runner.invoke(app, ["log", "verify", str(log)])
    assert answer.exit_code == 0, answer.output
    assert "missing: row 1 of epoch 1763712000000000; the node told of it" in answer.stdout


def test_verify_json(log: Path) -> None:
    """With --json the verdict is a field, and the exit code says the same."""
    answer = run_fanout("log", "verify", "--json", str(log))
    assert answer.returncode == 0
    assert [(one["node"], one["sound"], one["gaps"]) for one in json.loads(answer.stdout)] == [
        ("edge-1", True, []),
        ("hub", True, []),
    ]


@pytest.mark.parametrize("command", ["stat", "verify"])
def test_not_a_log(runner: CliRunner, tmp_path: Path, command: str) -> None:
    """A directory that is no log is a failure with a hint, not an empty answer."""
    (tmp_path / "elsewhere").touch()
    answer = runner.invoke(app, ["log", command, str(tmp_path)])
    assert (answer.exit_code, answer.stdout) == (5, "")
    assert "is not the directory of a replication log" in answer.stderr


def test_a_directory_above_several_logs(runner: CliRunner, tmp_path: Path) -> None:
    """Each log is named by `stat` and `verify`; `show` has the rows of all nodes, and those of a copy once."""
    hub, edge, copy = (tmp_path / name for name in ("hub", "edge", "mirror"))
    write_primary_log(hub, updates=10)
    write_secondary_log(edge, updates=10)
    shutil.copytree(hub, copy)
    above = str(tmp_path)
    logs = [str(edge), str(hub), str(copy)]
    for command in ("stat", "verify"):
        as_json = json.loads(runner.invoke(app, ["log", command, "--json", above]).stdout)
        assert [(one["log"], one["node"]) for one in as_json] == list(zip(logs, ["edge-1", "hub", "hub"], strict=True))
    stated = runner.invoke(app, ["log", "stat", above]).stdout.split("\n\n")
    assert [block.splitlines()[0].split() for block in stated] == [["log", log] for log in logs]
    verified = runner.invoke(app, ["log", "verify", above])
    assert verified.exit_code == 0
    assert f"hub     sound, 13 rows in 2 files of {copy}\n" in verified.stdout
    shown = runner.invoke(app, ["log", "show", "--json", "--last", "100", above])
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert sorted((row["node"], row["log_pos"]) for row in rows) == sorted(
        (row["node"], row["log_pos"]) for log in (hub, edge) for row in newest_rows(log, "updates", count=100)
    )
    for path in (copy / "v1").rglob("*.parquet"):
        path.write_bytes(b"PAR1")
    verified = runner.invoke(app, ["log", "verify", above])
    assert verified.exit_code == 1
    assert f"hub     sound, 13 rows in 2 files of {hub}\n" in verified.stdout
    assert f"hub     damaged, 0 rows in 2 files of {copy}\n" in verified.stdout


@pytest.mark.parametrize("command", ["stat", "verify"])
def test_log_without_rows(runner: CliRunner, tmp_path: Path, command: str) -> None:
    """A log in which nothing was written says so."""
    (tmp_path / "open").mkdir()
    answer = runner.invoke(app, ["log", command, str(tmp_path)])
    assert (answer.exit_code, answer.stdout) == (0, f"{tmp_path} holds no rows\n")


def test_show_updates(log: Path) -> None:
    """The newest rows of all nodes, oldest first, as a table; --node and --topic choose."""
    answer = run_fanout("log", "show", "--last", "3", "--node", "hub", str(log))
    assert (answer.returncode, answer.stderr) == (0, "")
    head, *rows = answer.stdout.splitlines()
    assert head.split() == ["TIME", "NODE", "LINK", "POS", "TOPIC", "BYTES", "QOS", "CHANGE", "PHASE", "FLAGS", "STAMP"]
    assert len(rows) == 3
    positions = [int(row.split()[4]) for row in rows]
    assert positions == sorted(positions)
    assert all(f"hub:{EPOCH}:" in row for row in rows)
    every = run_fanout("log", "show", "--last", "1000", "--json", str(log))
    documents = [json.loads(line) for line in every.stdout.splitlines()]
    assert {document["node"] for document in documents} == {"hub", "edge-1"}
    (topic, *_) = {document["topic"] for document in documents}
    chosen = run_fanout("log", "show", "--last", "1000", "--json", "--topic", topic, str(log))
    found = [json.loads(line) for line in chosen.stdout.splitlines()]
    assert found == [document for document in documents if document["topic"] == topic]
    assert documents[-1]["applied"].endswith("+00:00")


def test_show_a_stamp_of_a_year_that_is_none(tmp_path: Path) -> None:
    """What an earlier version let a publisher state, the year 33658, is shown as the last moment that has a name."""
    write_primary_log(tmp_path, updates=2, origin_us=10**18 - 1)
    rows = newest_rows(tmp_path, "updates", count=9)
    assert [row["origin"] for row in rows] == [datetime.max.replace(tzinfo=UTC)] * 2
    assert [row["sequence"] for row in rows] == [1, 2]


def test_show_events(log: Path) -> None:
    """Events with their details; a filter of topics is of no use for them, and one that is none is refused."""
    answer = run_fanout("log", "show", "--events", "--node", "edge-1", str(log))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "start" in answer.stdout
    assert "complete" in answer.stdout
    assert run_fanout("log", "show", "--events", "--topic", "a", str(log)).returncode == 2
    refused = run_fanout("log", "show", "--topic", "a/#/b", str(log))
    assert refused.returncode == 2
    nothing = run_fanout("log", "show", "--node", "nobody", str(log))
    assert (nothing.returncode, nothing.stdout) == (0, f"{log} holds no such rows\n")


def test_show_reads_what_a_killed_node_left(tmp_path: Path) -> None:
    """Whole frames of an open segment are shown behind what is sealed."""
    writer = LogWriter(tmp_path, node="hub", role="primary", node_epoch=EPOCH, clock=RunningClock(EPOCH))
    writer.open()
    writer.event("start")
    assert writer.flush()
    answer = run_fanout("log", "show", "--events", "--json", str(tmp_path))
    assert [json.loads(line)["event"] for line in answer.stdout.splitlines()] == ["start"]
    writer.close()


def test_show_events_of_some_kinds(runner: CliRunner, log: Path) -> None:
    """`--kind` chooses events, and says which there are when one is none."""
    answer = runner.invoke(app, ["log", "show", "--kind", "state, complete", "--json", str(log)])
    shown = [(row["event"], row["state"]) for row in map(json.loads, answer.stdout.splitlines())]
    assert shown == [("state", "connecting"), ("state", "snapshot"), ("complete", ""), ("state", "live")]
    refused = runner.invoke(app, ["log", "show", "--kind", "alarms", str(log)])
    assert refused.exit_code == 2
    assert "'alarms' is no event; events are start, stop, state," in refused.stderr
    assert runner.invoke(app, ["log", "show", "--kind", "state", "--topic", "a", str(log)]).exit_code == 2


def test_show_since_a_time(runner: CliRunner, log: Path) -> None:
    """Older rows are left out, of both tables; more than 20 rows are shown then."""
    since = ["--since", "2025-11-21T08:00:05"]
    events = runner.invoke(app, ["log", "show", "--kind", "heartbeat,stop,start", *since, "--json", str(log)])
    assert [json.loads(line)["event"] for line in events.stdout.splitlines()] == [
        "heartbeat",
        "heartbeat",
        "stop",
        "stop",
    ]
    updates = runner.invoke(app, ["log", "show", *since, str(log)])
    assert updates.stdout == f"{log} holds no such rows\n"
    assert runner.invoke(app, ["log", "show", "--since", "soon", str(log)]).exit_code == 2


def test_show_since_shows_more_rows(runner: CliRunner, tmp_path: Path) -> None:
    """Of a stretch of time all are wanted, up to a bound."""
    write_primary_log(tmp_path, updates=30)
    plain = runner.invoke(app, ["log", "show", "--json", str(tmp_path)])
    since = runner.invoke(app, ["log", "show", "--since", "2025-11-21", "--json", str(tmp_path)])
    few = runner.invoke(app, ["log", "show", "--since", "2025-11-21", "--last", "3", "--json", str(tmp_path)])
    assert [len(answer.stdout.splitlines()) for answer in (plain, since, few)] == [20, 30, 3]


def test_show_since_reads_no_file_that_ended_before(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file says of its rows is enough, so that a log of months is not read for ten minutes."""
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def noted(file: pq.ParquetFile, group: int, **options: Any) -> pa.Table:
        read.append(group)
        return real(file, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    late = datetime(2025, 11, 22, tzinfo=UTC)
    assert newest_rows(log, "events", count=9, since=late) == []
    assert read == []
    assert len(newest_rows(log, "events", count=99, since=datetime(2025, 11, 20, tzinfo=UTC))) == 10
    assert len(read) == 2
