"""Commands of a tutorial in one shell, on a network of their own, where the ports of the page are free."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["blocks", "run"]

ROOT = Path(__file__).parents[2]
_APART = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Beginning of a command on a network of its own; whatever it starts ends with it."""
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"


def blocks(page: str, *languages: str) -> list[str]:
    """Return the fenced blocks of a tutorial in these languages."""
    text = (ROOT / "docs" / "tutorial" / page).read_text()
    return [block for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL) if language in languages]


def run(script: str, cwd: Path, *programs: str, timeout: float) -> str:
    """Run lines of a shell beside a copy of `configs`; return what they wrote. The first failure ends them.

    Args:
        script: The lines.
        cwd: Directory to run them in.
        programs: Those that have to be there; the test is skipped without one.
        timeout: Most seconds that they may take.
    """
    for program in ("ip", *programs):
        if shutil.which(program, path=_PATH) is None:
            pytest.skip(f"{program} is not installed")
    if shutil.which("unshare") is None or subprocess.run([*_APART, "true"], check=False).returncode != 0:
        pytest.skip("a network of its own is not possible here")
    shutil.copytree(ROOT / "configs", cwd / "configs")
    answer = subprocess.run(
        [*_APART, "bash", "-c", f"set -eo pipefail\nip link set lo up\n{script}"],
        cwd=cwd,
        env={**os.environ, "PATH": _PATH},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout
