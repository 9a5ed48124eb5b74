"""`fanout audit`."""

from __future__ import annotations

import json

from fanout.cli.exit_codes import ExitCode
from tests.api.stand_in import StandInNode, ready_node, serving, snapshot_link
from tests.cli.processes import run_fanout

AUDIT = """\
LINK   CHECKED  CHANGED  REMOVED  LEFT IN PLACE   TOOK
plant  200,000        3        0         70,000  1.5 s

plant: if these topics are gone at the primary: fanout audit plant --confirm
"""


def test_audit_shows_what_it_found() -> None:
    """Without a name all links are audited; what is left in place is a no, with the way to go on."""
    with serving(ready_node()) as url:
        answer = run_fanout("audit", "--url", url)
    assert (answer.returncode, answer.stderr, answer.stdout) == (ExitCode.NO, "", AUDIT)


def test_confirmed_audit_leaves_nothing() -> None:
    """With --confirm everything is removed that the primary does not have; JSON is the node's document."""
    with serving(ready_node()) as url:
        answer = run_fanout("audit", "plant", "--confirm", "--json", "--url", url)
    assert answer.returncode == ExitCode.OK
    document = json.loads(answer.stdout)["plant"]
    assert (document["confirmed"], document["removed_topics"], document["kept_topics"]) == (True, 70_000, 0)


def test_audit_that_cannot_begin_says_why() -> None:
    """A link that is not live."""
    with serving(StandInNode(snapshot_link())) as url:
        answer = run_fanout("audit", "plant", "--url", url)
    assert answer.returncode == ExitCode.FAILED
    assert "the link is snapshot" in answer.stderr


def test_audit_of_a_link_that_is_not_there_names_those_that_are() -> None:
    """Also where somebody gives the address of the node, as to other commands."""
    with serving(ready_node()) as url:
        for name in ("planet", url):
            answer = run_fanout("audit", name, "--url", url)
            assert answer.returncode == ExitCode.FAILED
            assert answer.stderr == (
                f"error: edge-1 has no link {name}\n  Its links are plant; the address of a node goes with --url\n"
            )


def test_node_without_links_has_nothing_to_audit() -> None:
    """A primary is equal to itself."""
    with serving(StandInNode()) as url:
        answer = run_fanout("audit", "--url", url)
    assert (answer.returncode, answer.stdout) == (ExitCode.OK, "the node has no links\n")
