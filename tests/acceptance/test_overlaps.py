"""T5: selectors that share a topic are refused, with such a topic, by every command, before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.processes import run_fanout
from tests.support.nodes import link, selector

HEAD = '[node]\nid = "edge-1"\n[server]\nlisten = ["mqtt://127.0.0.1:0"]\n[log]\ndirectory = "{log}"\n'
SAME_LINK = link(1883, selector("a/+/c"), selector("a/b/#"))
TWO_PRIMARIES = link(1883, selector("a/+/c"), name="one") + link(1885, selector("a/b/#"), name="two")
AFTER_PREFIX = link(1883, selector("a/+/c"), name="one") + link(1885, selector("b/#", prefix="a/"), name="two")


@pytest.mark.parametrize(
    ("command", "links"),
    [
        pytest.param("check", SAME_LINK, id="check, one link"),
        pytest.param("secondary", TWO_PRIMARIES, id="secondary, two links to two primaries"),
        pytest.param("check", AFTER_PREFIX, id="check, only after the prefix"),
    ],
)
def test_overlap_is_refused_with_a_witness(tmp_path: Path, command: str, links: str) -> None:
    """Done when: `a/+/c` and `a/b/#`, on one link or on two, are refused with a witness topic; exit code 2."""
    config = tmp_path / "node.toml"
    config.write_text(HEAD.format(log=tmp_path / "log") + links)
    arguments = ["check", str(config)] if command == "check" else ["secondary", "--config", str(config)]
    answer = run_fanout(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert 'topic "a/b/c"' in answer.stderr
    assert "a/+/c" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "log").exists()
