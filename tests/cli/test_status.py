"""`fanout status` and `fanout lag`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fanout.api.models import SamplingDetail
from fanout.cli.app import app
from tests.api.stand_in import StandInNode, live_link, ready_node, serving, syncing_node
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


def test_status_shows_the_last_error_and_its_hint(runner: CliRunner) -> None:
    """What went wrong, and what to do, below the link."""
    with serving(StandInNode(live_link(last_error="Connection refused by mqtt://127.0.0.1:1883"))) as url:
        answer = runner.invoke(app, ["status", url])
    assert (
        "error     Connection refused by mqtt://127.0.0.1:1883\n          at 2025-11-21 08:00:00 UTC\n"
        "          Start the primary\n"
    ) in answer.stdout


def test_status_says_that_an_error_is_over(runner: CliRunner) -> None:
    """Its hint would send a person to something that works again."""
    link = live_link(last_error="the connection was lost").model_copy(update={"last_error_over": True, "hint": None})
    with serving(StandInNode(link)) as url:
        answer = runner.invoke(app, ["status", url])
    assert (
        "error     the connection was lost\n          at 2025-11-21 08:00:00 UTC; over, the link has been live since\n"
    ) in answer.stdout


def test_an_empty_selector_says_what_else_it_may_mean(runner: CliRunner) -> None:
    """In `status` and in `ready`."""
    link = live_link(topics=0)
    selectors = tuple(one.model_copy(update={"maybe_unreadable": True}) for one in link.selectors)
    with serving(StandInNode(link.model_copy(update={"selectors": selectors}))) as url:
        for command in ("status", "ready"):
            assert "0 (empty or not readable)" in runner.invoke(app, [command, url]).stdout


def test_status_says_why_no_samples_are_taken(runner: CliRunner) -> None:
    """Behind what they have found."""
    off = SamplingDetail(off="sample_topics is 0")
    with serving(StandInNode(live_link().model_copy(update={"sampling": off}))) as url:
        answer = runner.invoke(app, ["status", url])
    assert "samples   0 topics asked by name, 0 differed; off: sample_topics is 0\n" in answer.stdout


def test_status_shows_how_long_stale_values_are_served(runner: CliRunner) -> None:
    """The reason does not, since it stays the same."""
    stale = live_link().model_copy(update={"stale_left_seconds": 41.7})
    with serving(StandInNode(stale)) as url:
        answer = runner.invoke(app, ["status", url])
    assert "stale     for at most 41.7 s more\n" in answer.stdout


def test_status_of_a_tap(runner: CliRunner) -> None:
    """A tap serves nobody; what it has not is not shown as zeros."""
    node = ready_node()
    node.role, node.server, node.log, node.retained = "tap", None, None, None
    with serving(node) as url:
        answer = runner.invoke(app, ["status", url])
    assert "clients" not in answer.stdout
    assert "rows" not in answer.stdout
    assert "on disk" not in answer.stdout


def test_status_shows_a_log_alarm(runner: CliRunner) -> None:
    """A log that cannot be written says so."""
    node = ready_node()
    assert node.log is not None
    node.log = node.log.model_copy(update={"alarm": "No space left on device"})
    with serving(node) as url:
        answer = runner.invoke(app, ["status", url])
    assert "alarm    No space left on device\n" in answer.stdout


def test_status_shows_that_values_cannot_be_written(runner: CliRunner) -> None:
    """The reason stands where the file does."""
    node = ready_node()
    assert node.retained is not None
    node.retained = node.retained.model_copy(update={"alarm": "database or disk is full"})
    with serving(node) as url:
        answer = runner.invoke(app, ["status", url])
    assert "alarm    database or disk is full\n" in answer.stdout


def test_status_shows_how_old_stale_values_are(runner: CliRunner) -> None:
    """While they are current there is no such line."""
    for age_s, shown in ((41.7, True), (0.0, False), (None, False)):
        with serving(StandInNode(live_link().model_copy(update={"stale_seconds": age_s}))) as url:
            answer = runner.invoke(app, ["status", url])
        assert ("last known to be current" in answer.stdout) is shown
        assert ("values    last known to be current 41.7 s ago\n" in answer.stdout) is shown


def test_status_shows_how_the_primarys_count_differs(runner: CliRunner) -> None:
    """With both figures."""
    difference = "the primary counts 30, and 24 are here, 4 of its own topics among them"
    with serving(StandInNode(live_link().model_copy(update={"count_difference": difference}))) as url:
        answer = runner.invoke(app, ["status", url])
    assert f"count     {difference}\n" in answer.stdout


def test_link_without_troubles_has_no_such_line(runner: CliRunner) -> None:
    """Counters of trouble are shown when one of them is not zero."""
    quiet = live_link().model_copy(update={"reconnects_total": 0, "truncated_total": 0, "outside_total": 0})
    with serving(StandInNode(quiet)) as url:
        answer = runner.invoke(app, ["status", url])
    assert "troubles" not in answer.stdout


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
