"""Installation of fanout: optional parts, packages that a node hides, and whether the hot path is compiled.

The name of the distribution differs from that of the package and the command, because `fanout` is another project in
the public package index.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, Literal, TypeAlias

__all__ = ["DISTRIBUTION", "Build", "build", "hidden", "install_command"]

DISTRIBUTION: Final = "fanout-mqtt"

Build: TypeAlias = Literal["compiled", "pure"]
"""compiled: the modules of the hot path are extension modules. pure: all are Python. They do the same."""


@functools.cache  # each status has it
def build() -> Build:
    """Return whether the modules of the hot path are compiled: all of them are, or none (`scripts/build_hook.py`)."""
    decoder = Path(__file__).parent / "mqtt" / "decoder"
    is_compiled = any(decoder.with_name(f"{decoder.name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    return "compiled" if is_compiled else "pure"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the environment of this process.

    With fanout installed, from a checkout or from an index, pip asks no index for it. If it is not installed, the
    command names the checkout.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return f"{pip} '.[{extra}]' in the directory of fanout's pyproject.toml"
    return f"{pip} '{DISTRIBUTION}[{extra}]'"


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Let packages look as if they were not installed to what is imported in the `with` block, in each thread.

    Those that are imported already stay.
    """
    finder = _Hidden(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Hidden:
    """Finder of modules that says of some packages that they are not there."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Refuse a hidden package; other names are for the next finder."""
        del path, target
        if name in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
