"""Benchmarks as commands, in this process; their nodes are forks of one that has imported everything."""

from __future__ import annotations

import contextlib
import io
import subprocess
from pathlib import Path

import pytest

from bench.__main__ import perform
from bench.processes import Node
from tests.support.fork_server import forked_processes
from tests.support.nodes import processes_with, spawn_forked

__all__ = ["run_bench"]


def run_bench(*arguments: str | Path, kept: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Do what `python -m bench` does with these arguments, and return how it ended; no process may be left.

    Args:
        arguments: Of the command.
        kept: Where it keeps the files of its servers, if anywhere.
    """
    before, words = forked_processes(), [*map(str, arguments)]
    if kept is not None:
        words += ["--keep", str(kept)]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        patch.setattr(Node, "spawn", spawn_forked)
        code = perform(words)
    assert forked_processes() == before
    assert kept is None or processes_with(str(kept)) == []
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())
