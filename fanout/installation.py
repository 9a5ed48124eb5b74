"""How an optional part of fanout is installed where this process runs.

Owns the name of the distribution, which is not that of the package and the command: `fanout` is another project in the
public package index.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

__all__ = ["DISTRIBUTION", "install_command"]

DISTRIBUTION: Final = "fanout-mqtt"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the environment of this process.

    There pip finds fanout itself installed, whether from a checkout or from an index, and asks no index for it. Where
    it is not installed, the checkout is named instead.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return f"{pip} '.[{extra}]' in the directory of fanout's pyproject.toml"
    return f"{pip} '{DISTRIBUTION}[{extra}]'"
