"""The direction of imports, the purity of core modules, and that nothing pulls in Spark unasked."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fanout"

LAYERS: dict[str, set[str]] = {
    # What each part may import of the others; docs/architecture.md draws the same picture.
    "errors": {"mqtt.reason_codes"},
    "mqtt": {"errors"},
    "selection": {"errors", "mqtt"},
    "replica": {"errors", "mqtt", "selection"},
    "stamp": {"mqtt", "replica"},
    "standing": set(),
    "manifest": {"replica"},
    "config": {"errors", "mqtt", "selection", "access.settings"},
    "logging_setup": set(),
    "system_clock": set(),
    "long_lived": set(),
    "concerned": {"errors", "selection"},
    "replog": {"errors", "replica", "config"},
    "kept": {"errors", "replica", "selection"},
    "link": {"errors", "mqtt", "selection", "replica", "stamp", "standing", "manifest", "config"},
    "server": {"errors", "mqtt", "replica", "stamp", "manifest", "config", "access"},
    "access": {"errors", "mqtt", "selection"},
    "api": {"errors"},
    # It joins parts in other processes, as `node` does in the first one.
    "workers": {"errors", "mqtt", "concerned", "long_lived", "replica", "config", "access", "server", "link.backoff"},
    "reports": {"errors", "replog.schema", "replog.fetching"},
    "probe": {"errors"},
    "node": {"*"},
    "cli": {"*"},
    "__main__": {"cli"},
}

CORE = ("mqtt", "selection", "replica", "stamp", "standing", "manifest", "errors")
NOT_IN_CORE = {
    "asyncio",
    "socket",
    "os",
    "time",
    "random",
    "logging",
    "structlog",
    "threading",
    "pathlib",
    "io",
}


def modules() -> list[Path]:
    """Return every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """Return the part of the package to which a module belongs: its top-level package or module."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_architecture_names_every_part() -> None:
    """Each part of the package has a row in the table of `docs/architecture.md`."""
    parts = {part_of(path) for path in modules()} - {"__init__", "__main__"}
    assert parts == LAYERS.keys() - {"__main__"}
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    assert [part for part in sorted(parts) if f"\n| `fanout.{part}` | " not in page] == []


def imported(path: Path) -> set[str]:
    """Return the modules that a module imports, as full names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    """A module imports only from the parts below its own."""
    part = part_of(path)
    if part == "__init__":
        return
    allowed = LAYERS[part]
    for name in imported(path):
        if not name.startswith("fanout."):
            continue
        target = name.removeprefix("fanout.")
        fits = "*" in allowed or any(target == one or target.startswith(f"{one}.") for one in {*allowed, part})
        assert fits, f"{path.relative_to(PACKAGE)} imports {name}; {part} may import {sorted(allowed)}"


@pytest.mark.parametrize("path", [path for path in modules() if part_of(path) in CORE], ids=lambda path: path.name)
def test_core_has_no_input_or_output(path: Path) -> None:
    """Core modules import nothing that reads a clock, a file, a socket or the environment."""
    assert not {name.partition(".")[0] for name in imported(path)} & NOT_IN_CORE


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_public_names_are_listed(path: Path) -> None:
    """Every module with definitions has `__all__`, and every name in it exists."""
    text = path.read_text()
    if path.name == "__main__.py" or not any(
        isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign) for node in ast.parse(text).body
    ):
        return
    if part_of(path) == "reports":
        pytest.importorskip("pyspark")
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public}, which does not exist"


def test_service_modules_never_import_spark() -> None:
    """Importing every module outside the reports leaves pyspark unloaded."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in modules()
        if part_of(path) not in {"reports", "__main__"}
    ]
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\n"
    code += "print('pyspark' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_a_node_starts_without_what_only_some_need() -> None:
    """What takes a tenth of a second to import and only some configurations or commands use is imported there."""
    code = "import sys, fanout.cli.app, fanout.node\n"
    code += "print(sorted({'httpx', 'pyarrow.compute'} & sys.modules.keys()))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
