"""`configs/haproxy.cfg` and the configurations on the pages, as HAProxy itself reads them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.haproxy import find_haproxy

ROOT = Path(__file__).parents[2]
AROUND = """defaults
    mode tcp
    timeout connect 3s
    timeout client 1h
    timeout server 1h
frontend mqtt
    bind 127.0.0.1:1886
    default_backend secondaries
"""
"""What the backend of a page needs."""
EXAMPLES = {"configs/haproxy.cfg": (ROOT / "configs" / "haproxy.cfg").read_text()} | {
    str(path.relative_to(ROOT)): AROUND + text
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for text in re.findall(r"^```haproxy\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_haproxy_takes_the_example(example: str, tmp_path: Path) -> None:
    """`haproxy -c` finds no fault and nothing to warn of."""
    binary = find_haproxy()
    if binary is None:
        pytest.skip("HAProxy is not installed; scripts/setup installs it")
    path = tmp_path / "haproxy.cfg"
    path.write_text(EXAMPLES[example])
    answer = subprocess.run([binary, "-c", "-f", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "[WARNING]" not in answer.stderr


def test_each_configuration_on_a_page_is_named_one() -> None:
    """Else the test above would miss it."""
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if re.search(r"^```\n(?:defaults|frontend|backend)\b", page, re.MULTILINE)]
    assert len(EXAMPLES) == 2
