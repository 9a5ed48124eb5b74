"""`fanout ready`."""

from __future__ import annotations

import json
import os

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fanout.api.models import Readiness
from fanout.cli.app import app
from fanout.cli.asking.client import NodeClient
from fanout.cli.output.progress import SyncProgress
from fanout.cli.ready import wait_ready
from fanout.errors import NodeUnreachable
from tests.api.stand_in import StandInNode, live_link, ready_node, serving, snapshot_link, syncing_node
from tests.cli.processes import run_fanout, run_on_terminal
from tests.support.mosquitto import free_port


class ScriptedClient(NodeClient):
    """Answers from a list; the last answer repeats."""

    def __init__(self, *answers: Readiness | NodeUnreachable) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)
        self.asked = 0

    def readiness(self) -> Readiness:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, NodeUnreachable):
            raise answer
        return answer


class ManualClock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class BecomingReadyNode(StandInNode):
    """In its snapshot for the first answers, ready afterwards."""

    def __init__(self, *, answers_before: int) -> None:
        super().__init__(snapshot_link(topics=0))
        self.answers_before = answers_before
        self.answered = 0

    def readiness(self) -> Readiness:
        self.answered += 1
        if self.answered > self.answers_before:
            self.links, self.reasons = (live_link(),), ()
        else:
            self.links = (snapshot_link(topics=12_040 * self.answered),)
            self.reasons = (f"link plant: snapshot, {12_040 * self.answered:,} topics so far",)
        return super().readiness()


def wait(client: ScriptedClient, *, timeout_s: float) -> tuple[Readiness, float]:
    """Return the last answer and how long the wait was."""
    clock = ManualClock()
    with client, SyncProgress(Console(), url=client.url, enabled=False) as progress:
        readiness = wait_ready(client, timeout_s=timeout_s, progress=progress, clock=clock, sleep=clock.sleep)
    return readiness, clock.now - 1000


def test_ready(runner: CliRunner) -> None:
    """A ready node: exit 0, one line and the evidence of each selector."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["ready", url])
    assert answer.exit_code == 0
    assert answer.stderr == ""
    assert answer.stdout == (
        "edge-1 (secondary) is ready\n"
        "\n"
        "LINK   STATE   TOPICS  EVIDENCE  SELECTOR\n"
        "plant  live   200,000  marker    plant/#\n"
    )


def test_not_ready(runner: CliRunner) -> None:
    """A node that is not ready: exit 1 and every reason."""
    with serving(syncing_node()) as url:
        answer = runner.invoke(app, ["ready", url])
    assert answer.exit_code == 1
    assert answer.stderr == ""
    assert answer.stdout == (
        "edge-1 (secondary) is not ready\n"
        "  link plant: snapshot, 12,040 topics so far\n"
        "  now: load balancers send no new clients (503); connected ones get what it holds\n"
        "  next: ready by itself once that is over; remedies: fanout status\n"
        "\n"
        "LINK    STATE     TOPICS  EVIDENCE  SELECTOR\n"
        "office  live         321  marker    office/#\n"
        "plant   snapshot  12,040  -         plant/#\n"
    )


def test_what_follows_depends_on_the_state(runner: CliRunner) -> None:
    """A node that is held is not ready by itself, one that drains never again, and a stale one has old values."""
    node = syncing_node()
    with serving(node) as url:
        node.stale_seconds = 41.7
        assert "connected ones get old values" in runner.invoke(app, ["ready", url]).stdout
        node.hold(disconnect=False)
        assert "fanout undrain ends the hold" in runner.invoke(app, ["ready", url]).stdout
        node.drain()
        assert "nothing undoes that" in runner.invoke(app, ["ready", url]).stdout


def test_nothing_follows_for_clients_of_a_tap(runner: CliRunner) -> None:
    """It has none, so only what comes next is told: also of one that is held, and of one that ends."""
    node = syncing_node()
    node.role = "tap"
    with serving(node) as url:
        for change in (lambda: None, lambda: node.hold(disconnect=False), node.drain):
            change()
            shown = runner.invoke(app, ["ready", url]).stdout
            assert "  next: " in shown
            assert "  now: " not in shown


def test_primary_has_no_table(runner: CliRunner) -> None:
    """A node without links is ready in one line."""
    with serving(StandInNode(role="primary")) as url:
        answer = runner.invoke(app, ["ready", url])
    assert (answer.exit_code, answer.stdout) == (0, "edge-1 (primary) is ready\n")


def test_unreachable() -> None:
    """No node: exit 3, nothing on standard output, what to check on standard error."""
    port = free_port()
    answer = run_fanout("ready", f"127.0.0.1:{port}")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr == (
        f"error: nothing listens at http://127.0.0.1:{port} (connection refused)\n"
        "  Is the node running? Give its http.listen address as an argument or in FANOUT_URL\n"
    )


def test_url_from_the_environment() -> None:
    """FANOUT_URL takes the place of the argument."""
    with serving(ready_node()) as url:
        assert run_fanout("ready", FANOUT_URL=url).returncode == 0


def test_wrong_url_is_a_usage_error(runner: CliRunner) -> None:
    """An address that is not HTTP is refused before anything is asked."""
    answer = runner.invoke(app, ["ready", "mqtt://127.0.0.1:1883"])
    assert answer.exit_code == 2
    assert "is not an HTTP address" in answer.stderr


def test_json_is_the_document_and_nothing_else() -> None:
    """With --json standard output is one JSON document, ready or not, also while waiting."""
    node = BecomingReadyNode(answers_before=1)
    with serving(node) as url:
        waited = run_fanout("ready", url, "--json", "--wait", "30")
        node.answers_before = 1000
        not_ready = run_fanout("ready", url, "--json")
    assert (waited.returncode, waited.stderr) == (0, "")
    assert json.loads(waited.stdout)["links"][0]["evidence"] == "marker"
    assert (not_ready.returncode, not_ready.stderr) == (1, "")
    assert json.loads(not_ready.stdout)["reasons"] == ["link plant: snapshot, 36,120 topics so far"]


def test_wait_ends_when_ready() -> None:
    """--wait asks again until the node is ready, and in a pipe prints the last answer only."""
    with serving(BecomingReadyNode(answers_before=2)) as url:
        answer = run_fanout("ready", url, "--wait", "30")
    assert answer.returncode == 0
    assert answer.stdout.startswith("edge-1 (secondary) is ready\n")
    assert answer.stderr == ""


def test_wait_on_a_terminal_shows_the_topics() -> None:
    """On a terminal of 80 columns the topics of each link are shown as they arrive, then the answer."""
    with serving(BecomingReadyNode(answers_before=3)) as url:
        run = run_on_terminal("ready", url, "--wait", "30")
    assert run.exit_code == 0
    shown = [line for line in run.lines if "plant" in line and "topics" in line]
    for topics in ("12,040 topics", "24,080 topics", "36,120 topics"):
        assert any("snapshot" in line and topics in line for line in shown), topics
    assert max(map(len, run.lines)) <= 80
    assert "edge-1 (secondary) is ready" in run.text
    assert run.text.rstrip().endswith("plant  live   200,000  marker    plant/#")
    assert "\x1b[?25h" in run.raw, "the cursor is shown again"


def test_wait_on_a_terminal_leaves_standard_output_clean() -> None:
    """The progress display is on standard error, so that the document can be piped."""
    read, write = os.pipe()
    with serving(BecomingReadyNode(answers_before=2)) as url:
        run = run_on_terminal("ready", url, "--wait", "30", "--json", stdout=write)
    os.close(write)
    with os.fdopen(read) as piped:
        assert json.load(piped)["ready"] is True
    assert "24,080 topics" in run.text


def test_wait_ready_asks_once_without_a_timeout() -> None:
    """No --wait means one question."""
    client = ScriptedClient(syncing_node().readiness())
    readiness, waited_s = wait(client, timeout_s=0)
    assert (readiness.ready, client.asked, waited_s) == (False, 1, 0)


def test_wait_ready_gives_up_at_the_deadline() -> None:
    """The last question is asked when the time is up, never later."""
    client = ScriptedClient(syncing_node().readiness())
    readiness, waited_s = wait(client, timeout_s=1.2)
    assert (readiness.ready, client.asked) == (False, 4)
    assert waited_s == pytest.approx(1.2)


def test_wait_ready_survives_a_node_that_is_starting() -> None:
    """A node that is not reachable yet is waited for."""
    client = ScriptedClient(NodeUnreachable("nothing listens"), syncing_node().readiness(), ready_node().readiness())
    readiness, waited_s = wait(client, timeout_s=60)
    assert (readiness.ready, client.asked) == (True, 3)
    assert waited_s == pytest.approx(1.0)


def test_wait_ready_raises_when_unreachable_to_the_end() -> None:
    """Unreachable at the last try is unreachable, whatever was answered before."""
    client = ScriptedClient(syncing_node().readiness(), NodeUnreachable("nothing listens"))
    with pytest.raises(NodeUnreachable, match="nothing listens"):
        wait(client, timeout_s=2)


def test_ready_says_which_topics_are_not_held() -> None:
    """A ready node tells what it lacks all the same, and the exit code says ready."""
    node = ready_node()
    node.not_held_reason = "1 topic is not held: larger than packet_bytes_max"
    with serving(node) as url:
        answer = run_fanout("ready", url)
    assert answer.returncode == 0
    assert answer.stdout.splitlines()[:2] == [
        "edge-1 (secondary) is ready",
        "  link plant: 1 topic is not held: larger than packet_bytes_max",
    ]
