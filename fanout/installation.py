"""Install command of an optional part of fanout, for the environment of this process.

The name of the distribution differs from that of the package and the command, because `fanout` is another project in
the public package index.
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

    With fanout installed, from a checkout or from an index, pip asks no index for it. If it is not installed, the
    command names the checkout.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return f"{pip} '.[{extra}]' in the directory of fanout's pyproject.toml"
    return f"{pip} '{DISTRIBUTION}[{extra}]'"
