"""The direction of imports, the purity of core modules, and that nothing pulls in Spark unasked."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fanout"

LAYERS: dict[str, set[str]] = {
    # What each part may import of the others; docs/explanation/architecture.md draws the same picture.
    "errors": {"mqtt.reason_codes"},
    "mqtt": {"errors"},
    "peer_text": set(),
    "escaping": set(),
    "certificates": {"runtime"},
    "installation": set(),
    "selection": {"errors", "mqtt"},
    "replica": {"errors", "mqtt", "selection"},
    "chain": {"mqtt", "peer_text", "replica"},
    "runtime": {"escaping"},
    "config": {"errors", "escaping", "mqtt", "selection", "access.filters", "access.rules", "runtime.regular_files"},
    "affected_clients": {"errors", "selection"},
    "replog": {"errors", "replica", "config", "installation", "runtime"},
    "storage": {"errors", "replica", "selection", "runtime"},
    "link": {
        "errors",
        "mqtt",
        "selection",
        "replica",
        "chain",
        "peer_text",
        "escaping",
        "config",
        "certificates",
        "runtime",
    },
    "server": {"errors", "mqtt", "replica", "chain", "config", "access", "certificates", "runtime"},
    "amqp": {"errors", "mqtt", "access", "config", "installation", "server", "runtime"},
    "durable": {
        "errors",
        "mqtt",
        "peer_text",
        "replica",
        "access",
        "server",
        "pool.call_batches",
        "pool.membership",
        "runtime",
    },
    "pool": {"errors", "chain", "peer_text", "config", "certificates", "runtime"},
    "access": {"errors", "mqtt", "selection", "peer_text", "config.access", "runtime"},
    "api": {"errors", "escaping", "runtime"},
    "reports": {
        "errors",
        "escaping",
        "installation",
        "replog.files.log_directories",
        "replog.files.schema",
        "replog.shipping.fetching",
        "runtime.regular_files",
    },
    # It runs a link with a replica of its own, as `node` does.
    "probe": {"errors", "escaping", "mqtt", "selection", "replica", "peer_text", "config", "link", "runtime"},
    "node": {"*"},
    "cli": {"*"},
    "__main__": {"cli"},
}

CORE = ("mqtt", "escaping", "peer_text", "selection", "replica", "chain", "errors")
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

FOLDER_MODULES_MAX = 15


def modules() -> list[Path]:
    """Return every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def importable() -> list[Path]:
    """Return the modules that can be imported here: those of AMQP need an extra."""
    has_proton = importlib.util.find_spec("proton") is not None
    return [path for path in modules() if has_proton or part_of(path) != "amqp"]


def part_of(path: Path) -> str:
    """Return the part of the package to which a module belongs: its top-level package or module."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_architecture_names_every_part() -> None:
    """Each part of the package has a row in the table of `docs/explanation/architecture.md`."""
    parts = {part_of(path) for path in modules()} - {"__init__", "__main__"}
    assert parts == LAYERS.keys() - {"__main__"}
    page = (PACKAGE.parent / "docs" / "explanation" / "architecture.md").read_text()
    assert [part for part in sorted(parts) if f"\n| `fanout.{part}` | " not in page] == []


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the source of a module; each is read and parsed once."""
    return ast.parse(path.read_text())


@functools.cache
def imports_in(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a module, for types and inside functions included."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> set[str]:
    """Return the modules that a module imports, as full names."""
    names: set[str] = set()
    for node in imports_in(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def name_of(path: Path) -> str:
    """Return the name of a module or of a package, without the `fanout.` in front."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return for each module those that it imports, for types and inside functions included."""
    paths = {name_of(path): path for path in modules()}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        found: set[str] = set()
        for node in imports_in(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            else:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {each if each.removeprefix("fanout.") in paths else node.module or "" for each in whole}
        graph[name] = {each.removeprefix("fanout.") for each in found if each.startswith("fanout.")} & paths.keys()
        graph[name].discard(name)
    return graph


def circles_of(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of nodes that all reach each other, of more than one node."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            new = graph.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reaches = {node: reached(node) for node in graph}
    circles = {
        frozenset(other for other in reaches[node] if node in reaches.get(other, ())) for node in graph if reaches[node]
    }
    return {circle for circle in circles if len(circle) > 1}


def test_circles_are_found() -> None:
    """Two circles with a way between them are two, and what only leads there is in neither."""
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}
    assert circles_of(graph) == {frozenset("ab"), frozenset("cde")}
    assert circles_of({"a": {"b"}, "b": {"c"}}) == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """No module needs itself in the end: who reads one reads what is below it, and nothing above it."""
    graph = import_graph()
    assert graph["node.node"] > {"link.link", "node.documents"}
    assert circles_of(graph) == set()


def test_no_folders_import_each_other_in_a_circle() -> None:
    """The folders of one part import one way, too."""
    graph: dict[str, set[str]] = {}
    for name, found in import_graph().items():
        part, folder = name.partition(".")[0], name.rpartition(".")[0]
        targets = {target.rpartition(".")[0] for target in found if target.startswith(f"{part}.")}
        graph.setdefault(folder, set()).update(targets - {folder})
    graph.pop("", None)  # the top level has parts above and below the folders: see `LAYERS`
    assert circles_of(graph) == set()


def test_folders_stay_small() -> None:
    """No folder holds more modules than a reader can survey."""
    counts = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > FOLDER_MODULES_MAX} == {}


def test_imports_run_one_way() -> None:
    """A module imports only from the parts below its own."""
    wrong = []
    for path in modules():
        allowed = {*LAYERS.get(part := part_of(path), {"*"}), part}
        for name in imported(path):
            target = name.removeprefix("fanout.")
            if target != name and not any(one == "*" or f"{target}.".startswith(f"{one}.") for one in allowed):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}; {part} may import {sorted(allowed)}")
    assert wrong == []


def is_core(path: Path) -> bool:
    """Say whether a module belongs to a core part, or says "(core)" in the first paragraph of its docstring."""
    docstring = ast.get_docstring(parsed(path)) or ""
    return part_of(path) in CORE or re.search(r"\([^)]*\bcore\b", docstring.partition("\n\n")[0]) is not None


def test_core_has_no_input_or_output() -> None:
    """Core modules import nothing that reads a clock, a file, a socket or the environment."""
    core = [path for path in modules() if is_core(path)]
    assert {part_of(path) for path in core} >= {*CORE}
    roots = {path: {name.partition(".")[0] for name in imported(path)} for path in core}
    assert {str(path): found & NOT_IN_CORE for path, found in roots.items() if found & NOT_IN_CORE} == {}


def test_public_names_are_listed() -> None:
    """Every module with definitions has `__all__`, and every name in it exists."""
    pytest.importorskip("pyspark")
    for path in importable():
        if path.name == "__main__.py" or not any(
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign) for node in parsed(path).body
        ):
            continue
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        assert [public for public in module.__all__ if not hasattr(module, public)] == [], name


def test_service_modules_never_import_spark() -> None:
    """Importing every module outside the reports leaves pyspark unloaded."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in importable()
        if part_of(path) not in {"reports", "__main__"}
    ]
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\n"
    code += "print('pyspark' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


SLOW = {
    "fanout.link.link",
    "fanout.replog.write.writer",
    "fastapi",
    "httpx",
    "numpy.version",  # a hidden package is looked for, and not found
    "pandas.compat",
    "pyarrow",
    "pyarrow.compute",
    "rich.console",
    "uvicorn",
    "websockets",
}
"""Modules that take long to import, and without which some or all nodes can do."""
SERVER = '[node]\nid = "hub"\ndata_directory = "."\n[server]\nlisten = ["mqtt://127.0.0.1:0"]\n'
LINK = '[[link]]\nname = "plant"\nprimary = "mqtt://127.0.0.1:1"\n[[link.selector]]\nfilter = "#"\n'
LOG = '[log]\ndirectory = "log"\n'


@pytest.mark.parametrize(
    ("role", "config", "needed"),
    [
        ("primary", SERVER, set()),
        ("secondary", SERVER + LOG + LINK, {"fanout.link.link", "fanout.replog.write.writer", "pyarrow"}),
    ],
    ids=["primary", "secondary"],
)
def test_a_node_listens_before_it_imports_what_it_does_not_need(
    tmp_path: Path, role: str, config: str, needed: set[str]
) -> None:
    """A part that the configuration does not ask for, and a library that nodes never use, is not imported."""
    (tmp_path / "node.toml").write_text(config)
    command = [sys.executable, "-X", "importtime", "-m", "fanout", role, "--config", "node.toml"]
    imported_modules = set()
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        lines = []
        for line in node.stderr:
            lines.append(line)
            imported_modules.add(line.rpartition("|")[2].strip())
            if "node started" in line:
                break
        node.terminate()
        node.stderr.read()
    assert node.returncode == 0, "".join(lines[-10:])
    assert imported_modules & SLOW == needed
