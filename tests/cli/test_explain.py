"""`fanout explain`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from fanout.api.models import PoolMember
from fanout.api.operator_access import OperatorAccess
from fanout.api.topic_facts import LoggedEvent, PrimaryAnswer, TopicLog, TopicValue
from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from tests.api.stand_in import SINCE, StandInNode, pool_member, ready_node, serving
from tests.support.waiting import wait_until_blocking

EQUAL = """\
The value of "plant/1" here equals that of the primary; it came 2025-11-21 08:00:00 UTC.

topic    plant/1
here     12 bytes, digest 00000000000000aa, came 2025-11-21 08:00:00 UTC (1 min 30 s ago), node edge-1
link     plant, selector plant/#, live since 2025-11-21 08:00:00 UTC
primary  mqtt://broker:1883: 12 bytes, digest 00000000000000aa
"""


@pytest.mark.parametrize(
    ("answer", "exit_code", "first_line"),
    [
        (None, ExitCode.OK, EQUAL.splitlines()[0]),
        (
            PrimaryAnswer(outcome="value", value=TopicValue(digest="bb", payload_bytes=1)),
            ExitCode.NO,
            'The primary has another value of "plant/1" than this node; it changed after 2025-11-21 08:00:00 UTC, when'
            " the value here came.",
        ),
        (
            PrimaryAnswer(outcome="unanswered", error="cannot connect to mqtt://broker:1883", hint="Is it running?"),
            ExitCode.UNREACHABLE,
            'The primary could not be asked for "plant/1": cannot connect to mqtt://broker:1883.',
        ),
    ],
)
def test_first_line_and_exit_code(
    runner: CliRunner, answer: PrimaryAnswer | None, exit_code: ExitCode, first_line: str
) -> None:
    """The verdict is the first line, advice follows it, and the exit code says the same to a script."""
    node = ready_node()
    node.answer = answer
    with serving(node) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--url", url])
        as_json = runner.invoke(app, ["explain", "plant/1", "--url", url, "--json"])
    assert (found.exit_code, found.stdout.splitlines()[0], found.stderr) == (exit_code, first_line, "")
    assert as_json.exit_code == exit_code
    assert json.loads(as_json.stdout)["verdict"]["text"][1:] == first_line.removesuffix(".")[1:]
    if answer is None:
        assert found.stdout == EQUAL


def test_events_of_the_log_are_sentences(runner: CliRunner) -> None:
    """As `fanout events` has them."""
    node = ready_node()
    detail = '{"checked": 40, "changed": 0, "removed": 0, "kept": 0, "reason": "pool"}'
    node.topic_log = TopicLog(events=(LoggedEvent(at=SINCE, event="audit", detail=detail),))
    with serving(node) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--url", url])
    event = "events   2025-11-21 08:00:00 UTC  Link plant was compared with the primary, 40 topics: all equal"
    assert found.stdout.splitlines()[-2:] == ["log      no row of it", event]


def test_a_tap_and_a_client_are_part_of_the_verdict(runner: CliRunner) -> None:
    """The tap is asked by its own address, and the facts of both are judged together."""
    node, tap = ready_node(), ready_node()
    node.answer = PrimaryAnswer(outcome="absent")
    with serving(node) as url, serving(tap) as tap_url:
        found = runner.invoke(app, ["explain", "plant/1", "--url", url, "--tap", tap_url, "--client", "panel"])
    assert found.exit_code == ExitCode.NO
    assert found.stdout.startswith(
        'User edge may not read "plant/1" at the primary: it sends the value to user edge of'
    )
    lines = found.stdout.splitlines()
    assert 'Also: Client "panel" has no session at this node. Ask the other nodes of the pool' in lines[-1]
    assert any(line.startswith("tap      edge-1: 12 bytes") for line in lines)
    assert "client   no session" in lines


def test_the_token_goes_to_the_node_and_to_the_tap(runner: CliRunner, tmp_path: Path) -> None:
    """Both want one; without it the node's reason is shown."""
    token = "a-token-of-24-characters"
    file = tmp_path / "token"
    file.write_text(token)
    access = OperatorAccess(token=token)
    with serving(ready_node(), access=access) as url, serving(ready_node(), access=access) as tap_url:
        asked = ["explain", "plant/1", "--url", url, "--tap", tap_url]
        allowed = runner.invoke(app, [*asked, "--token-file", str(file)])
        refused = runner.invoke(app, asked)
    assert (allowed.exit_code, allowed.stderr) == (ExitCode.OK, "")
    assert (refused.exit_code, refused.stdout) == (ExitCode.FAILED, "")
    assert "a token is needed" in refused.stderr


def test_a_tap_that_does_not_answer_hides_nothing(runner: CliRunner) -> None:
    """What the node says is shown, and the exit code is that of the tap."""
    with serving(ready_node()) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--url", url, "--tap", "127.0.0.1:1"])
    assert (found.exit_code, found.stdout) == (ExitCode.UNREACHABLE, EQUAL)
    assert "127.0.0.1:1" in found.stderr


@pytest.mark.parametrize("topic", ["plant/#", "+", "", "a\0b"])
def test_what_is_no_topic_name_is_refused_here(runner: CliRunner, topic: str) -> None:
    """Before anything is asked."""
    found = runner.invoke(app, ["explain", topic])
    assert found.exit_code == ExitCode.USAGE
    assert "topic as it is published" in " ".join(found.stderr.split())


def test_a_node_that_explains_another_topic_says_so(runner: CliRunner) -> None:
    """One at a time: the second one is told, and nothing is shown."""
    node = ready_node()
    node.may_explain.clear()
    with serving(node) as url, ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.get, f"{url}/v1/explain?topic=plant/1", trust_env=False, timeout=30)
        wait_until_blocking(node.explaining.is_set, what="the first question being asked")
        found = runner.invoke(app, ["explain", "plant/1", "--url", url])
        node.release()
        assert first.result(30).status_code == 200
    assert (found.exit_code, found.stdout) == (ExitCode.FAILED, "")
    assert "another topic is being explained" in found.stderr


@contextmanager
def members(lacking: StandInNode, *, further: tuple[PoolMember, ...] = ()) -> Iterator[str]:
    """Serve a pool of two, of which the second is `lacking`; give the URL of the first."""
    first = ready_node()
    lacking.node = "edge-2"
    with serving(lacking) as other:
        first.members = (pool_member("edge-1", is_self=True), pool_member("edge-2", url=other), *further)
        with serving(first) as url:
            yield url


def test_all_members_of_a_pool_are_asked(runner: CliRunner) -> None:
    """Together they know more than each: since when a value is lost, and on whose way."""
    lacking = ready_node()
    lacking.digest = "bb"
    lacking.answer = PrimaryAnswer(outcome="value", value=TopicValue(digest="00000000000000aa", payload_bytes=12))
    gone = pool_member("edge-3", url="http://127.0.0.1:9")
    unknown = pool_member("edge-4", url=None)
    with members(lacking, further=(gone, unknown)) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--pool", url])
        document = json.loads(runner.invoke(app, ["explain", "plant/1", "--pool", "--json", url]).stdout)
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert (found.exit_code, found.stderr) == (ExitCode.NO, "")
    assert lines[0] == (
        "edge-1 got the value of the primary at 2025-11-21 08:00:00 UTC and edge-2 did not: it was lost between the"
        " primary and edge-2."
    )
    text = found.stdout
    assert 'edge-1  The value of "plant/1" here equals that of the primary' in text
    assert 'edge-2  The primary has another value of "plant/1" than this node' in text
    assert "edge-3  Not asked: nothing listens at http://127.0.0.1:9 (connection refused)." in text
    assert "edge-4  Not asked: its HTTP address is not known." in text
    assert lines[lines.index("edge-2:") + 1].startswith('The primary has another value of "plant/1"')
    assert list(document["members"]) == ["edge-1", "edge-2"]
    assert document["members"]["edge-2"]["verdict"]["kind"] == "differs"
    assert (list(document["left_out"]), len(document["together"])) == (["edge-3", "edge-4"], 1)


def test_members_that_agree_with_the_primary(runner: CliRunner) -> None:
    """Exit 0; if one cannot be asked, it is not known of all."""
    with members(ready_node()) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--pool", url])
    assert (found.exit_code, found.stdout.splitlines()[0].split()) == (ExitCode.OK, ["MEMBER", "FINDING"])
    with members(ready_node(), further=(pool_member("edge-3", url=None),)) as url:
        assert runner.invoke(app, ["explain", "plant/1", "--pool", url]).exit_code == ExitCode.UNREACHABLE


def test_members_with_other_addresses_of_the_primary_are_told(runner: CliRunner) -> None:
    """Two brokers may be taken for one; a list of addresses of one primary looks the same, so it is no finding."""
    lacking = ready_node()
    lacking.primary = "mqtt://other:1883"
    with members(lacking) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--pool", url])
    assert found.exit_code == ExitCode.OK
    assert " ".join(found.stdout.split()).startswith(
        "Not all members have the same address of the primary: mqtt://broker:1883 of edge-1; mqtt://other:1883 of"
        " edge-2."
    )


def test_members_that_replicate_two_brokers_are_told(runner: CliRunner) -> None:
    """Each equals its own primary, and yet they differ: no member sees that alone."""
    other = ready_node()
    other.primary, other.digest = "mqtt://other:1883", "bb"
    with members(other) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--pool", url])
    assert found.exit_code == ExitCode.NO
    assert found.stdout.startswith(
        "members hold different values, each that of its primary: they replicate different brokers."
    )


def test_a_client_is_looked_for_at_all_members(runner: CliRunner) -> None:
    """That it has no session is a finding only if no member has one."""
    there = ready_node()
    there.sessions_of = {"panel"}
    with members(there) as url:
        found = runner.invoke(app, ["explain", "plant/1", "--pool", "--client", "panel", url])
        nowhere = runner.invoke(app, ["explain", "plant/1", "--pool", "--client", "stranger", url])
    assert found.exit_code == ExitCode.OK, found.stdout
    assert nowhere.exit_code == ExitCode.NO
    assert 'Client "stranger" has no session' in nowhere.stdout


def test_a_pool_is_not_compared_with_a_tap(runner: CliRunner) -> None:
    """A tap belongs to one node."""
    found = runner.invoke(app, ["explain", "plant/1", "--pool", "--tap", "http://127.0.0.1:9"])
    assert found.exit_code == ExitCode.USAGE
    assert "leave out --pool" in found.stderr
