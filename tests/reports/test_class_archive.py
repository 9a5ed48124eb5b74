"""The archive of the JVM's classes that short reports start from."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fanout.reports.class_archive import ClassArchive
from fanout.reports.java import Java

WHOLE = b"\xa8\xab\x0b\xf0" + bytes(100)
TORN = bytes(104)


def make_old(path: Path, *, seconds: float) -> None:
    """Let a path have been changed so long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_one_run_records_and_later_ones_use_it(tmp_path: Path) -> None:
    """While it is recorded others start without; then they start from it."""
    folder = tmp_path / "of-this-java"
    file = folder / "classes.jsa"
    assert ClassArchive(folder).options({}) == f"-XX:ArchiveClassesAtExit={file}"
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may put classes there"
    assert ClassArchive(folder).options({}) == ""
    file.write_bytes(TORN)
    assert ClassArchive(folder).options({}) == "", "the JVM writes the header last"
    file.write_bytes(WHOLE)
    make_old(folder, seconds=29 * 86400)
    assert ClassArchive(folder).options({}) == f"-XX:SharedArchiveFile={file}"
    assert time.time() - folder.stat().st_mtime < 60, "it was used now"


def test_a_run_that_failed_or_was_killed_leaves_it_to_the_next(tmp_path: Path) -> None:
    """A failed run would leave an archive that lacks classes; a torn one is of no use."""
    folder = tmp_path / "of-this-java"
    failed = ClassArchive(folder)
    assert failed.options({})
    failed.give_up()
    assert not folder.exists()
    killed = ClassArchive(folder)
    assert killed.options({})
    (folder / "classes.jsa").write_bytes(TORN)
    make_old(folder, seconds=3601)
    assert ClassArchive(folder).options({}).startswith("-XX:ArchiveClassesAtExit=")
    (folder / "classes.jsa").write_bytes(WHOLE)
    user = ClassArchive(folder)
    assert user.options({})
    user.give_up()
    assert folder.exists(), "a run that only used it leaves it"


def test_what_no_run_used_for_a_month_is_removed(tmp_path: Path) -> None:
    """Another Java or pyspark than a month ago leaves nothing behind."""
    for name, days in (("old", 31), ("other", 29)):
        (tmp_path / name).mkdir()
        make_old(tmp_path / name, seconds=days * 86400)
    assert ClassArchive(tmp_path / "of-this-java").options({})
    assert {path.name for path in tmp_path.iterdir()} == {"other", "of-this-java"}


def test_all_archives_together_have_a_bound(tmp_path: Path) -> None:
    """Two others of 190 MB stay beside a new one: those that were used last."""
    for days, name in enumerate(("newest", "new", "old", "oldest"), start=1):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "classes.jsa").open("wb") as file:
            file.truncate(190_000_000)  # takes no room on the disk
        make_old(tmp_path / name, seconds=days * 86400)
    assert ClassArchive(tmp_path / "of-this-java").options({})
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "new", "of-this-java"}


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"])
def test_who_chose_an_archive_keeps_it(tmp_path: Path, name: str) -> None:
    """Options of the user's own win, and `-Xshare:off` among them means none."""
    assert ClassArchive(tmp_path / "a").options({name: "-Xmx1g -Xshare:off"}) == ""
    assert list(tmp_path.iterdir()) == []


def test_without_a_cache_directory_a_report_starts_as_ever(tmp_path: Path) -> None:
    """Where nothing can be written there is no archive, and no error."""
    (tmp_path / "cache").write_text("a file in its place")
    java = Java(tmp_path, 17, "PATH")
    assert ClassArchive.of(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")}).options({}) == ""


def test_each_java_and_each_pyspark_has_its_own(tmp_path: Path) -> None:
    """The program is named by where it lies and when it was written."""
    folders = set()
    for name in ("one", "two"):
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.touch()
        options = ClassArchive.of(Java(tmp_path / name, 17, "PATH"), {"XDG_CACHE_HOME": str(tmp_path)}).options({})
        folders.add(Path(options.partition("=")[2]).parent)
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path / "fanout" / "class-archive"}


def test_a_jvm_starts_from_what_another_wrote_when_it_ended(tmp_path: Path) -> None:
    """As Spark's does; that a report's own is written shows `tests/cli/test_report.py`."""
    archive, java = ClassArchive(tmp_path / "of-this-java"), shutil.which("java")
    assert java is not None
    for mapped in ("-Xshare:auto", "-Xshare:on"):
        command = [java, *archive.options({}).split(), mapped, "-version"]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b""
    assert archive.options({}).startswith("-XX:SharedArchiveFile=")
