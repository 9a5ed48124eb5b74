"""`fanout status` and `fanout lag`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fanout.api.models import SamplingDetail
from fanout.cli.app import app
from tests.api.stand_in import SINCE, StandInNode, live_link, ready_node, serving, syncing_node
from tests.cli.processes import run_fanout, run_on_terminal

STATUS = """\
node     edge-1 (secondary)
ready    no: link plant: snapshot, 12,040 topics so far
serves   mqtt://127.0.0.1:1884
running  fanout 0.1.0 for 3 h 12 min

LINK    STATE     FOR         TOPICS   PAYLOAD  RECEIVED  SESSIONS
office  live      3 h 12 min     321  20.1 KiB     1,555         2
plant   snapshot  3 h 12 min  12,040   752 KiB    13,274         2

LINK    TOPICS  COMPLETE  EVIDENCE  DIGEST            SELECTOR
office     321  yes       marker    00ff00ff00ff00ff  office/#
plant   12,040  no        -         0000000000000001  plant/#

link      office
primary   mqtt://127.0.0.1:1883
snapshot  321 topics in 1.9 s
samples   480 topics asked by name, 7 differed
left out  of office/#: content 21
not held  1 topic is not held: larger than packet_bytes_max
skipped   packet_too_large 6
          08:00:00 UTC plant/film: 17,000,000 bytes
breaches  flags 8
troubles  reconnects 3, truncated snapshots 1, messages outside the selectors 7

link      plant
primary   mqtt://127.0.0.1:1883
samples   480 topics asked by name, 7 differed
not held  1 topic is not held: larger than packet_bytes_max
skipped   packet_too_large 6
          08:00:00 UTC plant/film: 17,000,000 bytes
breaches  flags 8
troubles  reconnects 3, truncated snapshots 1, messages outside the selectors 7

clients    12 connected, 14 sessions
           40 subscriptions in 3 audiences
retained   200,000 topics
delivered  12,345,678 messages, 942 MiB
received   55 messages
queued     6 messages, 700 B
conflated  21 messages, 8 values waiting
dropped    expired 1, queue_full 4

log      var/replication-log
written  201,234 rows, 22.4 MiB
waiting  17 rows, 19 not on the disk yet
lost     0 rows
kept     8 files, 1.18 MiB
shipped  6 files to s3://bucket/logs
to ship  2 files, the oldest for 31.5 s

on disk  var/lib/retained-edge-1.sqlite
size     195 KiB
waiting  7 values, not acknowledged yet
"""


def test_status_in_a_pipe() -> None:
    """The whole picture, plain, each number with what it counts; a node that is not ready is no failure."""
    with serving(syncing_node()) as url:
        answer = run_fanout("status", url)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == STATUS


def test_status_on_a_terminal() -> None:
    """On 80 columns nothing wraps, and readiness has a colour."""
    with serving(syncing_node()) as url:
        run = run_on_terminal("status", url)
    assert run.exit_code == 0
    assert [line.rstrip() for line in run.text.splitlines()] == STATUS.splitlines()
    assert "\x1b[31mno: link plant" in run.raw


def test_each_reason_has_a_line(runner: CliRunner) -> None:
    """A node with many links may have as many."""
    node = StandInNode(live_link("plant"), live_link("office"))
    node.reasons = ("link plant: down", "link office: down")
    with serving(node) as url:
        answer = runner.invoke(app, ["status", url])
    assert "ready    no: link plant: down\n         link office: down\nserves " in answer.stdout


LOST = {"last_error": "the connection was lost", "last_error_at": SINCE}
FAILED = "error     the connection was lost\n          at 2025-11-21 08:00:00 UTC"


@pytest.mark.parametrize(
    ("changes", "shown", "absent"),
    [
        (LOST | {"last_error_over": False, "hint": "Start it"}, f"{FAILED}\n          Start it\n", "; over"),
        (LOST | {"last_error_over": True, "hint": None}, f"{FAILED}; over, the link has been live since\n", "Start it"),
        (
            {"sampling": SamplingDetail(off="sample_topics is 0")},
            "samples   0 topics asked by name, 0 differed; off: sample_topics is 0\n",
            "stale",
        ),
        ({"stale_left_seconds": 41.7}, "stale     for at most 41.7 s more\n", "last known"),
        ({"stale_seconds": 41.7}, "values    last known to be current 41.7 s ago\n", "for at most"),
        ({"stale_seconds": 0.0}, "troubles", "last known"),
        ({"stale_seconds": None}, "troubles", "last known"),
        ({"count_difference": "30 there, 24 here"}, "count     30 there, 24 here\n", "error"),
        ({"reconnects_total": 0, "truncated_total": 0, "outside_total": 0}, "primary ", "troubles"),
    ],
)
def test_what_is_the_matter_with_a_link_has_a_line(
    runner: CliRunner, changes: dict[str, object], shown: str, absent: str
) -> None:
    """What went wrong, with its hint while it lasts, and how far values may be trusted; nothing of it otherwise."""
    with serving(StandInNode(live_link().model_copy(update=changes))) as url:
        answer = runner.invoke(app, ["status", url])
    assert shown in answer.stdout
    assert absent not in answer.stdout


@pytest.mark.parametrize(("part", "alarm"), [("log", "No space left on device"), ("retained", "the disk is full")])
def test_what_cannot_be_written_has_a_line(runner: CliRunner, part: str, alarm: str) -> None:
    """The reason stands where the files do."""
    node = ready_node()
    setattr(node, part, getattr(node, part).model_copy(update={"alarm": alarm}))
    with serving(node) as url:
        answer = runner.invoke(app, ["status", url])
    assert f"alarm    {alarm}\n" in answer.stdout


def test_an_empty_selector_says_what_else_it_may_mean(runner: CliRunner) -> None:
    """In `status` and in `ready`."""
    link = live_link(topics=0)
    selectors = tuple(one.model_copy(update={"maybe_unreadable": True}) for one in link.selectors)
    with serving(StandInNode(link.model_copy(update={"selectors": selectors}))) as url:
        for command in ("status", "ready"):
            assert "0 (empty or not readable)" in runner.invoke(app, [command, url]).stdout


def test_status_of_a_tap(runner: CliRunner) -> None:
    """A tap serves nobody; what it has not is not shown as zeros."""
    node = ready_node()
    node.role, node.server, node.log, node.retained = "tap", None, None, None
    with serving(node) as url:
        answer = runner.invoke(app, ["status", url])
    assert "clients" not in answer.stdout
    assert "rows" not in answer.stdout
    assert "on disk" not in answer.stdout


def test_lag_known(runner: CliRunner) -> None:
    """One row for each link, with the basis of the number."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["lag", url])
    assert answer.exit_code == 0
    assert answer.stdout == (
        "LINK   STATE     LAG  ITEMS  BASIS      HEARTBEAT AGE  RECEIVED   TOPICS\n"
        "plant  live   4.1 ms      0  heartbeat          1.5 s   201,234  200,000\n"
    )


def test_lag_unknown_is_a_dash_with_a_reason(runner: CliRunner) -> None:
    """What is not known is a dash, never zero, and the reason stands below."""
    node = ready_node()
    node.heartbeat = (None, None, 0)
    with serving(node) as url:
        answer = runner.invoke(app, ["lag", url])
    assert answer.stdout == (
        "LINK   STATE  LAG  ITEMS  BASIS    HEARTBEAT AGE  RECEIVED   TOPICS\n"
        "plant  live     -      -  unknown              -   201,234  200,000\n"
        "\n"
        "plant: heartbeats are switched off\n"
    )


def test_lag_of_a_node_without_links(runner: CliRunner) -> None:
    """A primary has no lag, and says why."""
    with serving(StandInNode(role="primary")) as url:
        answer = runner.invoke(app, ["lag", url])
    assert (answer.exit_code, answer.stdout) == (0, "edge-1 (primary) has no links\n")


@pytest.mark.parametrize(("command", "path"), [("status", "status"), ("lag", "lag")])
def test_json_is_the_document_and_nothing_else(command: str, path: str) -> None:
    """With --json standard output is the node's document, on a terminal too."""
    node = ready_node()
    document = getattr(node, path)().model_dump(mode="json")
    with serving(node) as url:
        piped = run_fanout(command, "--json", url)
        shown = run_on_terminal(command, "--json", url)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert json.loads(piped.stdout) == document
    assert json.loads(shown.raw) == document


@pytest.mark.parametrize("command", ["status", "lag"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_unreachable(runner: CliRunner, command: str, options: list[str]) -> None:
    """No node: exit 3 and an empty standard output, with --json too."""
    answer = runner.invoke(app, [command, *options, "http://127.0.0.1:1"])
    assert (answer.exit_code, answer.stdout) == (3, "")
    assert "connection refused" in answer.stderr
