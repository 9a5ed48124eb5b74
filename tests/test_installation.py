"""The name of the distribution, and the commands that hints give."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import fanout
from fanout.errors import ExtraMissing
from fanout.installation import DISTRIBUTION, build, install_command

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_distribution_has_a_name_of_its_own() -> None:
    """`fanout` in the public package index is another project; the command and the import keep the name."""
    assert PROJECT["name"] == DISTRIBUTION == "fanout-mqtt"
    assert PROJECT["scripts"] == {"fanout": "fanout.cli:main"}
    assert importlib.metadata.version(DISTRIBUTION) == PROJECT["version"] == fanout.__version__


def build_wheel(to: Path, *, compiled: bool) -> Path:
    """Build the wheel of the checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", str(to), str(ROOT)]
    environment = os.environ | {"FANOUT_COMPILE": str(int(compiled))}
    subprocess.run(command, check=True, timeout=200, capture_output=True, env=environment)
    (wheel,) = to.glob("*.whl")
    return wheel


def test_the_wheel_is_named_so(tmp_path: Path) -> None:
    """The file, what pip takes for its name, and what it installs: no module that was compiled in the checkout."""
    wheel = build_wheel(tmp_path, compiled=False)
    assert wheel.name == f"fanout_mqtt-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("fanout/config/full.toml") == (ROOT / "configs" / "full.toml").read_bytes()
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA"))
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "\nName: fanout-mqtt\n" in metadata
    assert "fanout = fanout.cli:main" in entry_points
    assert "fanout/__main__.py" in names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.long
def test_a_compiled_wheel_says_so(tmp_path: Path) -> None:
    """It is for one Python and one system, has source and compiled modules, and tells what it is once installed."""
    wheel = build_wheel(tmp_path, compiled=True)
    assert not wheel.name.endswith("-none-any.whl")
    installed = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True, timeout=200, capture_output=True)
    decoder = installed / "fanout" / "mqtt" / f"decoder{EXTENSION_SUFFIXES[0]}"
    assert decoder.exists()
    assert decoder.with_name("decoder.py").exists()
    code = "import fanout.mqtt.decoder as decoder, fanout.installation as here; print(decoder.__file__, here.build())"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
        cwd=installed,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert answer.stdout.split() == [str(decoder), "compiled"]


def test_the_build_is_told_from_what_is_imported() -> None:
    """`build` looks for a file; the module that is imported is that file."""
    origin = str(importlib.import_module("fanout.mqtt.decoder").__file__)
    assert build() == ("compiled" if origin.endswith(EXTENSION_SUFFIXES[0]) else "pure")


@pytest.mark.parametrize("extra", ["report", "demo", "java"])
def test_the_command_of_a_hint_finds_what_is_installed(extra: str) -> None:
    """Without any index pip takes fanout from this environment and the extra exists: no stranger's package."""
    assert extra in PROJECT["optional-dependencies"]
    command = shlex.split(install_command(extra))
    assert command == [sys.executable, "-m", "pip", "install", f"fanout-mqtt[{extra}]"]
    answer = subprocess.run(
        [*command, "--dry-run", "--no-index"], capture_output=True, text=True, timeout=100, check=False
    )
    assert f"Requirement already satisfied: fanout-mqtt[{extra}]" in answer.stdout
    assert "does not provide the extra" not in answer.stderr


def test_a_checkout_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else pip would look for the name in an index."""

    def find(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("fanout.installation.distribution", find)
    error = ExtraMissing("fanout report", install=install_command("report"))
    assert error.hint == f"Run: {sys.executable} -m pip install '.[report]' in the directory of fanout's pyproject.toml"


def test_no_page_installs_the_other_project() -> None:
    """Neither documents, scripts nor messages tell anybody to install `fanout` from an index."""
    pages = list(ROOT.glob("*.md"))
    for folder in ("configs", "docs", "fanout", "scripts", "docker", "bench"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        pages += [path for path in files if path.suffix not in {".pyc", ".png", ".so"}]
    wrong = re.compile(r"pip3? install [^\n`;|]*?['\" ]fanout(?:\[|['\"`\s]|$)", re.MULTILINE)
    assert wrong.search("Run: pip install 'fanout[report]'")
    assert {str(path): found[0] for path in pages if (found := wrong.search(path.read_text()))} == {}


def test_a_lock_with_versions_of_another_is_written_with_them(tmp_path: Path) -> None:
    """`scripts/lock`, with a stand-in for uv: each file that names a constraint is compiled with it, and no other."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text('#!/bin/sh\necho "$@" >> calls; [ "$3" != - ] || cat > /dev/null\n')
    uv.chmod(0o755)
    environment = os.environ | {"PATH": f"{uv.parent}:{os.environ['PATH']}"}
    subprocess.run(["scripts/lock"], cwd=tmp_path, env=environment, check=True, timeout=60, capture_output=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    written = {re.findall(r"--output-file (\S+)", call)[0]: re.findall(r"--constraint (\S+)", call) for call in calls}
    named = {str(path.relative_to(ROOT)): re.findall(r"# +-c (\S+)", path.read_text()) for path in ROOT.glob("locks/*")}
    assert written == {lock: sorted(set(constraints)) for lock, constraints in named.items()}


def find_venv(**environment: str) -> subprocess.CompletedProcess[str]:
    """Have the scripts print where the virtual environment is."""
    command = ["bash", "-c", '. "$1" && echo "$VENV"', "bash", str(ROOT / "scripts" / "lib.sh")]
    others = {name: text for name, text in os.environ.items() if name not in {"PYTHON", "FANOUT_VENV"}}
    return subprocess.run(command, env=others | environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_python_that_is_named_has_an_environment_of_its_own() -> None:
    """Beside `.venv`, by its version; without a name it is `.venv`, and `FANOUT_VENV` is stronger than both."""
    own = ".venv-{}.{}".format(*sys.version_info)
    assert find_venv().stdout == ".venv\n"
    assert find_venv(PYTHON=sys.executable).stdout == f"{own}\n"
    assert find_venv(PYTHON=sys.executable, FANOUT_VENV="elsewhere").stdout == "elsewhere\n"


def test_a_python_that_is_not_there_is_not_replaced_by_another(tmp_path: Path) -> None:
    """The check would pass, of another version than the one that was asked for; so would one that is too old."""
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.18\n')
    old.chmod(0o755)
    for python, why in (("python3.999", "python3.999: command not found"), (str(old), "Python 3.9.18")):
        answer = find_venv(PYTHON=python)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr.startswith(f"error: PYTHON={python} is no Python of 3.11 or newer: ")
        assert answer.stderr.endswith(f"{why}\n")


def test_modules_compiled_for_another_python_stay_as_old_as_they_are(tmp_path: Path) -> None:
    """Set-up that finds nothing to do calls its own compiled modules current; those of another it did not look at."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    own, other = (tmp_path / "fanout" / f"decoder.{tag}.so" for tag in ("own", "other"))
    python = tmp_path / "venv" / "bin" / "python"
    for path in (own, other, python):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1, 1))
    python.write_text('#!/bin/sh\n[ "$2" = pip ] || echo .own.so\n')
    python.chmod(0o755)
    command = ["bash", "-c", ". scripts/lib.sh && install_project && install_project"]
    environment = os.environ | {"FANOUT_VENV": "venv", "FANOUT_COMPILE": "0"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60, capture_output=True)
    assert own.stat().st_mtime > 1
    assert other.stat().st_mtime == 1


def put_release(folder: Path, name: str, version: str, *, requires: str = "") -> str:
    """Put a wheel without content into a folder; return its line in a lock file."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: extra\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def install_lock(lock: Path, *, releases: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Install a lock file as the scripts do, from a folder in place of an index, with the pip of this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(to)], check=True, timeout=100)
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(releases)}
    environment = os.environ | index | {"FANOUT_VENV": str(to), "PYTHONPATH": sysconfig.get_path("purelib")}
    command = ["bash", "-c", '. "$1" && install_packages "$2"', "bash", str(ROOT / "scripts" / "lib.sh"), str(lock)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


def test_a_later_release_does_not_break_the_lock(tmp_path: Path) -> None:
    """Pip looked at it for a requirement with an extra, and refused to go on because it has no hash."""
    user = put_release(tmp_path, "fanout_test_user", "1", requires="fanout_test_used[extra]>=1")
    used = put_release(tmp_path, "fanout_test_used", "1")
    put_release(tmp_path, "fanout_test_used", "2")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"{user}\n{used}\n")
    installed = install_lock(lock, releases=tmp_path, to=tmp_path / "venv")
    assert installed.returncode == 0, installed.stderr
    lock.write_text(f"{user}\n")
    incomplete = install_lock(lock, releases=tmp_path, to=tmp_path / "incomplete")
    assert incomplete.returncode == 1
    assert "is not complete. Run scripts/lock\nfanout-test-user 1 requires fanout-test-used" in incomplete.stderr


def test_a_hidden_package_is_found_again_afterwards() -> None:
    """It looks as if it were not installed; others are found, and so is one that is imported already."""
    code = (
        "import json\n"
        "from fanout.installation import hidden\n"
        "with hidden('wave', 'json'):\n"
        "    import json, csv\n"
        "    try: import wave\n"
        "    except ImportError as error: print(error)\n"
        "import wave\n"
        "print(wave.__name__)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["No module named 'wave'", "wave"]
