"""`fanout pool`, `fanout pool compare`, `fanout pool upgrade-check` and `fanout ready --pool`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.api.models import PoolDocument
from fanout.cli.app import app
from fanout.cli.asking.client import NodeClient
from tests.api.stand_in import SINCE, StandInNode, pool_member, ready_node, serving
from tests.node.browse.pieces import Node, value


class BecomingReadyPool(StandInNode):
    """Waits for a member in its first answers, and is ready afterwards."""

    def __init__(self, *, answers_before: int) -> None:
        super().__init__()
        self.answers_left = answers_before

    def pool(self) -> PoolDocument:
        self.answers_left -= 1
        self.pool_reasons = self.stay_reasons = ("edge-2 is not ready",) if self.answers_left >= 0 else ()
        return super().pool()


def waiting_node() -> StandInNode:
    """Return a node of whose pool one member has never answered, and one replicates something else."""
    node = ready_node()
    other = pool_member(
        config_digest="00000000000000dd", state="not_ready", ready=False, digest_equal=False, digest_equal_since=SINCE
    )
    never = pool_member(
        None,
        address="10.0.0.7:9201",
        reachable=False,
        failure="it does not answer in time",
        state=None,
        ready=None,
        topics=None,
        digest_equal=None,
        lag=None,
        sessions=None,
        moved_in=None,
        moved_out=None,
        version=None,
        config_digest=None,
    )
    node.members = (*node.members[:1], other, never)
    node.pool_reasons = ("edge-2 is not ready", "10.0.0.7:9201 is not reachable: it does not answer in time")
    node.stay_reasons = node.pool_reasons
    return node


def test_pool(runner: CliRunner) -> None:
    """One line, every reason, and a row for each member; what is not known is a dash. Exit 0 in any case."""
    with serving(waiting_node()) as url:
        answer = runner.invoke(app, ["pool", url])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout == (
        "the pool of 3 members, seen by edge-1, is not ready\n"
        "  edge-2 is not ready\n"
        "  10.0.0.7:9201 is not reachable: it does not answer in time\n"
        "  fanout pool compare names the topics that differ, since 2025-11-21 08:00:00 UTC\n"
        "\n"
        "MEMBER  ADDRESS         STATE           TOPICS  SESSIONS  IN/OUT     LAG  REPLICATES      VALUES    VERSION\n"
        "edge-1  this node       ready          200,000        14     2/1  4.1 ms  the same        unlike 1  0.1.0\n"
        "edge-2  127.0.0.1:9202  not ready      200,000        14     2/1  4.1 ms  something else  differ    0.1.0\n"
        "-       10.0.0.7:9201   not reachable        -         -       -       -  -               -         -\n"
    )


def test_pool_as_json(runner: CliRunner) -> None:
    """The node's document and nothing else, with every name of the contract."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["pool", "--json", url])
    document = json.loads(answer.stdout)
    assert (answer.exit_code, document["ready"], document["reasons"]) == (0, True, [])
    names = "node reachable state ready topics digest_equal digest_equal_since lag sessions moved_in moved_out version"
    assert {*names.split(), "config_digest"} <= document["members"][1].keys()


def test_node_without_a_pool(runner: CliRunner) -> None:
    """The question cannot be answered: exit 5, and what to do."""
    node = ready_node()
    node.members = ()
    with serving(node) as url:
        for words in (["pool"], ["pool", "upgrade-check"], ["ready", "--pool"]):
            answer = runner.invoke(app, [*words, url], standalone_mode=True)
            assert (answer.exit_code, answer.stdout) == (5, "")
            assert answer.stderr == "error: edge-1 is in no pool\n  Add [pool] to its configuration\n"


def test_ready_asks_for_the_whole_pool(runner: CliRunner) -> None:
    """Exit 0 when every member is ready, else 1, though the node itself is."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["ready", "--pool", url])
        assert (answer.exit_code, answer.stdout.splitlines()[0]) == (
            0,
            "the pool of 2 members, seen by edge-1, is ready",
        )
    with serving(waiting_node()) as url:
        assert runner.invoke(app, ["ready", url]).exit_code == 0
        answer = runner.invoke(app, ["ready", "--pool", "--json", url])
        assert answer.exit_code == 1
        assert json.loads(answer.stdout)["reasons"][0] == "edge-2 is not ready"


def test_ready_waits_for_the_pool(runner: CliRunner) -> None:
    """With --wait it asks again until every member is ready."""
    node = BecomingReadyPool(answers_before=1)
    with serving(node) as url:
        assert runner.invoke(app, ["ready", "--pool", "--wait", "30", url]).exit_code == 0
    assert node.answers_left == -1


def test_a_member_may_be_stopped(runner: CliRunner) -> None:
    """When the others are ready; whether it is ready itself does not matter."""
    node = ready_node()
    node.pool_reasons = ("edge-1 is not ready",)
    with serving(node) as url:
        answer = runner.invoke(app, ["pool", "upgrade-check", url])
        assert (answer.exit_code, answer.stderr) == (0, "")
        assert answer.stdout == "edge-1 may be stopped, 1 other member is ready for its 14 sessions\n"
        answer = runner.invoke(app, ["pool", "upgrade-check", "--json", url])
    assert json.loads(answer.stdout) == {"node": "edge-1", "may_stop": True, "reasons": []}


def test_a_member_should_stay(runner: CliRunner) -> None:
    """With every reason; exit 1."""
    with serving(waiting_node()) as url:
        answer = runner.invoke(app, ["pool", "upgrade-check", url])
        assert (answer.exit_code, answer.stderr) == (1, "")
        assert answer.stdout == (
            "edge-1 should stay\n  edge-2 is not ready\n  10.0.0.7:9201 is not reachable: it does not answer in time\n"
        )
        answer = runner.invoke(app, ["pool", "upgrade-check", "--json", url])
    assert (answer.exit_code, json.loads(answer.stdout)["may_stop"]) == (1, False)


def test_upgrade_check_waits_for_the_others(runner: CliRunner) -> None:
    """With --wait it asks again until they are ready for the member to go."""
    node = BecomingReadyPool(answers_before=1)
    with serving(node) as url:
        assert runner.invoke(app, ["pool", "upgrade-check", "--wait", "30", url]).exit_code == 0
    assert node.answers_left == -1


def test_an_older_node_does_not_know_whether_it_may_be_stopped(runner: CliRunner) -> None:
    """No answer is not a yes: exit 5, and what to do."""
    node = ready_node()
    node.stay_reasons = None
    with serving(node) as url:
        answer = runner.invoke(app, ["pool", "upgrade-check", url])
    assert (answer.exit_code, answer.stdout) == (5, "")
    assert answer.stderr == (
        "error: edge-1 does not say whether it may be stopped: its version of fanout is too old\n"
        "  Ask for the whole pool instead: fanout ready --pool\n"
    )


@contextmanager
def members(first: Node, second: Node) -> Iterator[str]:
    """Serve two members of a pool, which hold topics; yield the address of the first."""
    nodes = ready_node(), ready_node()
    nodes[0].browser, nodes[1].browser = first.browser, second.browser
    with serving(nodes[0]) as url, serving(nodes[1]) as other:
        nodes[0].members = (pool_member("edge-1", is_self=True), pool_member(url=other))
        yield url


def test_a_pool_that_holds_the_same(runner: CliRunner) -> None:
    """Topics of a member's own clients are not compared."""
    with members(Node(["plant/1", "plant/2"], own=["mine"]), Node(["plant/1", "plant/2"])) as url:
        answer = runner.invoke(app, ["pool", "compare", url])
    assert (answer.exit_code, answer.stdout) == (0, "edge-1, edge-2 hold 2 topics: no topic differs\n")


def test_topics_that_members_hold_differently(runner: CliRunner) -> None:
    """Each is named, with what each member holds and the command that says why; names of strangers are escaped."""
    first, second = Node(["plant/1", "plant/2", "plant/3\x1b[31m"]), Node(["plant/1", "plant/2"])
    first.publish(value("plant/1", b"two"))
    with members(first, second) as url:
        answer = runner.invoke(app, ["pool", "compare", url])
        cut = runner.invoke(app, ["pool", "compare", url, "--limit", "1"])
        document = json.loads(runner.invoke(app, ["pool", "compare", url, "--json"]).stdout)
    assert answer.exit_code == cut.exit_code == 1
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    digest = document["differing"][1]["values"]["edge-1"]["digest"]
    assert lines[0] == "edge-1, edge-2 hold 3 topics: 2 topics differ"
    assert lines[2] == "TOPIC MEMBER BYTES RECEIVED DIGEST"
    assert [line.split()[:4] for line in lines[3:5]] == [
        ["plant/1", "edge-1", "3", "B"],
        ["edge-2", "1", "B", "2023-11-14"],
    ]
    assert lines[5:] == [
        f"plant/3\\x1b[31m edge-1 1 B 2023-11-14 22:13:20 {digest}",
        "edge-2 no value",
        "",
        f"fanout explain plant/1 {url} says why",
    ]
    assert "1 of 2 topics; --limit shows more" in cut.stdout
    assert (document["members"], document["topics"], document["whole"]) == (["edge-1", "edge-2"], 3, True)
    assert [one["values"]["edge-2"] is None for one in document["differing"]] == [False, True]


def test_a_member_whose_address_is_not_known(runner: CliRunner) -> None:
    """It cannot be compared."""
    node = ready_node()
    node.members = (pool_member("edge-1", is_self=True), pool_member(url=None))
    with serving(node) as url:
        answer = runner.invoke(app, ["pool", "compare", url])
    assert (answer.exit_code, answer.stdout) == (5, "")
    assert "edge-2 cannot be asked: its HTTP address is not known" in answer.stderr


def test_a_token_goes_to_no_member_without_tls(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it went to the first member over TLS, another one without TLS gets nothing."""
    node = ready_node()
    node.members = (pool_member("edge-1", is_self=True), pool_member(url="http://127.0.0.1:9"))
    monkeypatch.setattr(NodeClient, "pool", lambda _: node.pool())
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o600)
    asked = ["https://edge-1:8080", "--token-file", str(tmp_path / "token")]
    compared = runner.invoke(app, ["pool", "compare", *asked])
    assert compared.exit_code == 5
    assert "edge-2 cannot be asked: a token is not sent there: it has no TLS" in compared.stderr
