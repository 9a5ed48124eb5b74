"""Build hook of hatchling: with FANOUT_COMPILE=1 it compiles the modules of the hot path with mypyc.

The source is the same: a compiled module lies beside it and is imported in its place. A wheel has it inside; an
editable installation gets it into the checkout, and without FANOUT_COMPILE=1 loses it again.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = ("fanout/link/ingest/convert.py", "fanout/mqtt/decoder.py", "fanout/server/routing/dispatch.py")
"""What is compiled, each by itself. docs/decisions/0047-compiled-core.md says what the others would bring."""
REQUIREMENTS = ["mypy==2.4.1", "setuptools>=65"]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"


class CompileHook(BuildHookInterface[Any]):
    """Compiles where it is asked to."""

    PLUGIN_NAME = "custom"

    @property
    def _is_asked(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("FANOUT_COMPILE", "0") == "1"

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling."""
        return REQUIREMENTS if self._is_asked else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the full configuration to the wheel; compile, and add the result."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if version == "editable":
            for old in (root / "fanout").rglob(f"*{SUFFIX}"):
                old.unlink()
        else:
            build_data["force_include"][str(root / "configs" / "full.toml")] = "fanout/config/full.toml"
        if not self._is_asked:
            return
        built = Path(tempfile.mkdtemp(prefix="fanout-compiled-"))
        for extension in compile_modules(root, built):
            place = extension.relative_to(built)
            if version == "editable":
                (root / place).write_bytes(extension.read_bytes())
            else:
                build_data["force_include"][str(extension)] = str(place)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_modules(root: Path, to: Path) -> list[Path]:
    """Compile the modules of a checkout into another directory; return the extension modules."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    before, arguments = Path.cwd(), sys.argv
    os.chdir(root)  # mypyc names modules by their paths from here
    try:
        extensions = [
            extension
            for number, module in enumerate(MODULES)
            for extension in mypycify(
                ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", module],
                opt_level="3",
                target_dir=str(to / f"c-{number}"),
            )
        ]
        command = Distribution({"name": "fanout", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(to), str(to / "objects")
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
    except Exception as error:
        raise SystemExit(
            f"FANOUT_COMPILE=1, and the modules of the hot path cannot be compiled: {error}\n"
            "A C compiler and the headers of Python are needed (on Debian: apt-get install gcc python3-dev). Without "
            "FANOUT_COMPILE=1 fanout is installed as it is, and slower."
        ) from error
    finally:
        os.chdir(before)
        sys.argv = arguments
    return sorted((to / "fanout").rglob(f"*{SUFFIX}"))
