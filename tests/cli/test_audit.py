"""`fanout audit`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fanout.api.models import AuditDetail
from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from tests.api.stand_in import StandInNode, live_link, ready_node, serving, snapshot_link
from tests.cli.processes import run_fanout

AUDIT = """\
LINK   CHECKED  CHANGED  REMOVED  LEFT IN PLACE   TOOK
plant  200,000        3        0         70,000  1.5 s

plant: 70,000 topics did not come from the primary and stay, unconfirmed
  see them: fanout audit plant --list
  only if they are deleted there: fanout audit plant --confirm 70000
"""


def test_audit_shows_what_it_found() -> None:
    """Without a name all links are audited; what is left in place is a no, with the way to go on."""
    with serving(ready_node()) as url:
        answer = run_fanout("audit", "--url", url)
    assert (answer.returncode, answer.stderr, answer.stdout) == (ExitCode.NO, "", AUDIT)


def test_confirmed_audit_leaves_nothing() -> None:
    """With --confirm and their number unconfirmed topics are removed; JSON is the node's document."""
    with serving(ready_node()) as url:
        answer = run_fanout("audit", "plant", "--confirm", "70000", "--json", "--url", url)
        wrong = run_fanout("audit", "plant", "--confirm", "3", "--url", url)
    assert (wrong.returncode, "70000 topics are unconfirmed now, not 3" in wrong.stderr) == (ExitCode.FAILED, True)
    assert answer.returncode == ExitCode.OK
    document = json.loads(answer.stdout)["plant"]
    assert (document["confirmed"], document["removed_topics"], document["kept_topics"]) == (True, 70_000, 0)


def test_audit_that_cannot_begin_says_why() -> None:
    """A link that is not live."""
    with serving(StandInNode(snapshot_link())) as url:
        answer = run_fanout("audit", "plant", "--url", url)
    assert answer.returncode == ExitCode.FAILED
    assert "the link is snapshot" in answer.stderr


def test_audit_of_all_links_shows_what_it_found_beside_one_that_cannot_begin(runner: CliRunner) -> None:
    """The others are audited, whatever their order; the exit code tells of the one that was not."""
    with serving(StandInNode(snapshot_link("city"), live_link("plant"))) as url:
        answer = runner.invoke(app, ["audit", "--url", url])
        document = runner.invoke(app, ["audit", "--json", "--url", url])
        unnamed = runner.invoke(app, ["audit", "--confirm", "70000", "--url", url])
    assert (unnamed.exit_code, "name one of the links: city, plant" in unnamed.stderr) == (ExitCode.USAGE, True)
    assert (answer.exit_code, answer.stdout) == (ExitCode.FAILED, AUDIT)
    assert "error: " in answer.stderr
    assert "the link is snapshot" in answer.stderr
    assert document.exit_code == ExitCode.FAILED
    links = json.loads(document.stdout)
    assert links["plant"]["kept_topics"] == 70_000
    assert "the link is snapshot" in links["city"]["error"]


def test_audit_of_a_node_that_goes_away_shows_what_it_had_found(runner: CliRunner) -> None:
    """The first link's result is not lost with the second's."""

    class GoesAway(StandInNode):
        async def audit(self, link: str, *, confirmed: int | None) -> AuditDetail:
            if link == "city":
                raise RuntimeError("gone")
            return await super().audit(link, confirmed=confirmed)

    with serving(GoesAway(live_link("plant"), live_link("city"), live_link("harbour"))) as url:
        answer = runner.invoke(app, ["audit", "--url", url])
    assert (answer.exit_code, answer.stdout) == (ExitCode.UNREACHABLE, AUDIT)
    assert answer.stderr.count("error: ") == 1


def test_audit_of_a_link_that_is_not_there_names_those_that_are() -> None:
    """Also where somebody gives the address of the node, as to other commands."""
    with serving(ready_node()) as url:
        for name in ("planet", url):
            answer = run_fanout("audit", name, "--url", url)
            assert answer.returncode == ExitCode.FAILED
            assert answer.stderr == (
                f"error: edge-1 has no link {name}\n  Its links are plant; the address of a node goes with --url\n"
            )


def test_an_address_takes_the_place_of_the_link() -> None:
    """HOST:PORT as the only argument is the node, with its scheme or without."""
    with serving(ready_node()) as url:
        for address in (url, url.removeprefix("http://")):
            assert run_fanout("audit", address).returncode == ExitCode.NO
            listed = run_fanout("audit", "--list", address)
            assert listed.stdout.startswith("plant: 5 topics did not come")


def test_unconfirmed_topics_are_listed_by_branch(runner: CliRunner) -> None:
    """Text has branches with counts, made printable, and the causes; JSON has every topic. No audit is made."""
    node = ready_node()
    with serving(node) as url:
        answer = runner.invoke(app, ["audit", "--list", "--url", url])
        document = json.loads(runner.invoke(app, ["audit", "--list", "--json", "--url", url]).stdout)["plant"]
        both = runner.invoke(app, ["audit", "plant", "--list", "--confirm", "5", "--url", url])
        node.unconfirmed_topics = 0
        none = runner.invoke(app, ["audit", "--list", "--url", url])
    assert (answer.exit_code, answer.stdout) == (
        ExitCode.NO,
        "plant: 5 topics did not come from the primary:"
        " deleted there, no longer readable by user edge, or expired there\n"
        "\nTOPICS  BELOW\n     5  plant/\\x1b[2J\n",
    )
    assert document["topics"] == [f"plant/cell-{number}/temp" for number in range(5)]
    assert both.exit_code == ExitCode.USAGE
    assert (none.exit_code, none.stdout) == (ExitCode.OK, "plant: no topic is unconfirmed\n")


def test_node_without_links_has_nothing_to_audit() -> None:
    """A primary is equal to itself."""
    with serving(StandInNode()) as url:
        answer = run_fanout("audit", "--url", url)
    assert (answer.returncode, answer.stdout) == (ExitCode.OK, "the node has no links\n")
