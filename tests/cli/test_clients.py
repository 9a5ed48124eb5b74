"""`fanout clients` and `fanout clients kick`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.api.operator_access import OperatorAccess
from fanout.cli.app import app
from tests.api.stand_in import ready_node, serving

TOKEN = "a-token-of-24-characters"


def test_table_of_clients(runner: CliRunner) -> None:
    """A line each, with a dash for what is not known, and how many there are."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["clients", "--url", url])
    assert answer.exit_code == 0
    assert answer.stdout.splitlines() == [
        "CLIENT  USER       ADDRESS          SLOW FOR  QUEUED  BYTES  CONFLATED  BYTES/S  FILTERS",
        "app-1   dashboard  192.0.2.7:50123  30.0 s         4  3 KiB      1,234    5 KiB        2",
        "app-2   -          not connected    -              0    0 B          0        -        0",
        "",
        "2 of 14 sessions at edge-1",
    ]


def test_slowest_and_pages(runner: CliRunner) -> None:
    """The options are what the node is asked; what is left out is told."""
    node = ready_node()
    with serving(node) as url:
        assert runner.invoke(app, ["clients", "--slowest", "--limit", "7", "--url", url]).exit_code == 0
        answer = runner.invoke(app, ["clients", "--limit", "1", "--after", "aa", "--url", url])
        wrong = runner.invoke(app, ["clients", "--slowest", "--after", "aa", "--url", url])
    assert node.asked_clients == [("slowest", "", 7, None), ("id", "aa", 1, None)]
    assert answer.stdout.splitlines()[-2:] == [
        "1 of 14 sessions at edge-1",
        "more: --after app-1",
    ]
    assert wrong.exit_code == 2


def test_clients_that_read_a_topic(runner: CliRunner) -> None:
    """A filter that is none is refused with the name of the parameter."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["clients", "--filter", "plant/#", "--url", url])
        wrong = runner.invoke(app, ["clients", "--filter", "plant#", "--url", url])
    assert answer.stdout.splitlines()[1].startswith("app-1 ")
    assert "app-2" not in answer.stdout
    assert wrong.exit_code == 5
    assert "filter must be a Topic Filter" in wrong.stderr


def test_one_client_in_full(runner: CliRunner) -> None:
    """With its Topic Filters."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["clients", "--client", "app-1", "--url", url])
        unknown = runner.invoke(app, ["clients", "--client", "nobody", "--url", url])
    assert answer.stdout.splitlines() == [
        "client     app-1",
        "user       dashboard",
        "address    192.0.2.7:50123, for 1 min 30 s",
        "protocol   MQTT 5",
        "slow       for 30.0 s",
        "queued     4 messages, 2 KiB",
        "unsent     1 KiB",
        "conflated  1,234 topics",
        "in flight  2 messages",
        "reads      5 KiB/s",
        "filters    2",
        "           plant/#",
        "           office/+/state",
    ]
    assert (unknown.exit_code, unknown.stdout) == (5, "")
    assert "no client 'nobody' has a session at edge-1" in unknown.stderr


def test_clients_as_json(runner: CliRunner) -> None:
    """The node's document, Topic Filters included."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["clients", "--json", "--url", url])
    document = json.loads(answer.stdout)
    assert [client["client_id"] for client in document["clients"]] == ["app-1", "app-2"]
    assert document["clients"][0]["filters"] == ["plant/#", "office/+/state"]
    assert (document["sessions"], document["next"]) == (14, None)


def test_names_of_strangers_control_no_terminal(runner: CliRunner) -> None:
    """Client Identifiers, users and filters are escaped and cut."""
    node = ready_node()
    node.client_details = (
        node.client_details[0].model_copy(
            update={"client_id": "\x1b[31mred", "user": "u" * 1000, "filters": ("a\u202eb",)}
        ),
    )
    with serving(node) as url:
        table = runner.invoke(app, ["clients", "--url", url]).stdout
        one = runner.invoke(app, ["clients", "--client", "\x1b[31mred", "--url", url]).stdout
    assert "\\x1b[31mred" in table
    assert "uuu… (1,000 characters)" in table
    assert "\\u202e" in one
    assert "\x1b" not in table + one


def test_kick(runner: CliRunner) -> None:
    """One line: whether it was there, and what became of its session."""
    with serving(ready_node()) as url:
        kept = runner.invoke(app, ["clients", "kick", "app-1", "--url", url])
        ended = runner.invoke(app, ["clients", "kick", "app-1", "--clean", "--json", "--url", url])
        unknown = runner.invoke(app, ["clients", "kick", "nobody", "--url", url])
    assert (kept.exit_code, kept.stdout) == (0, "app-1 was sent away; its session stays\n")
    assert json.loads(ended.stdout) == {
        "node": "edge-1",
        "client_id": "app-1",
        "was_connected": True,
        "session": "ended",
    }
    assert (unknown.exit_code, unknown.stdout) == (5, "")


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["lag"],
        ["pool"],
        ["pool", "upgrade-check"],
        ["ready", "--pool"],
        ["drain", "--hold"],
        ["undrain"],
        ["reload"],
    ]
    + [[name, "--url"] for name in ("audit", "clients")],
)
def test_every_command_that_asks_for_more_than_a_probe_takes_the_token(
    runner: CliRunner, tmp_path: Path, command: list[str]
) -> None:
    """Without it the node refuses: exit code 5. With it another reason may be against the command, but not this one."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(ready_node(), access=OperatorAccess(token=TOKEN)) as url:
        without = runner.invoke(app, [*command, url])
        allowed = runner.invoke(app, [*command, url], env={"FANOUT_TOKEN_FILE": str(file)})
    assert (without.exit_code, "a token is needed" in without.stderr) == (5, True)
    assert "token" not in allowed.stderr
    assert allowed.exit_code in (0, 1)


def test_token(runner: CliRunner, tmp_path: Path) -> None:
    """Off loopback the node wants it; it is read from a file, never from the command line."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(ready_node(), access=OperatorAccess(token=TOKEN)) as url:
        without = runner.invoke(app, ["clients", "--url", url])
        allowed = runner.invoke(app, ["clients", "--token-file", str(file), "--url", url])
        kicked = runner.invoke(app, ["clients", "kick", "app-1", "--url", url], env={"FANOUT_TOKEN_FILE": str(file)})
        file.write_text("another-token-of-24-characters")
        wrong = runner.invoke(app, ["clients", "--token-file", str(file), "--url", url])
        file.write_text("short")
        unfit = runner.invoke(app, ["clients", "--token-file", str(file), "--url", url])
    assert [one.exit_code for one in (without, allowed, kicked, wrong, unfit)] == [5, 0, 0, 5, 2]
    assert "a token is needed" in without.stderr
    assert "the token is wrong" in wrong.stderr
