"""Archive of the JVM's classes, so that a short report does not load and verify 20,000 of them again.

Owns one folder for each Java and pyspark in the user's cache directory. The first run that ends well leaves the archive
there (HotSpot's "application class-data sharing"; the JVM writes it after the report is out), later ones start from it.
The JVM checks an archive itself and goes on without one that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fanout.reports.java import Java, cache_directory

__all__ = ["ClassArchive"]

_UNFINISHED_S: Final = 3600.0
"""After so long a folder without a whole archive is from a run that was killed, or whose disk was full."""

_UNUSED_S: Final = 30 * 86400.0
"""After so long an archive that no run used is removed: of another Java, of another pyspark."""

_OTHERS_BYTES_MAX: Final = 400_000_000
"""Size of all other archives, of 190 MB each, beside a new one; those that were used last stay."""

_OPTIONS_FROM: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_OWN_CHOICE: Final = ("ArchiveFile", "ArchiveClassesAtExit", "-Xshare")
"""A user who gives the JVM one of these decides about archives himself."""

_HEADER_BYTES: Final = 4
"""The JVM writes the first bytes of an archive last."""


class ClassArchive:
    """The archive of one Java and one pyspark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "classes.jsa"
        self._records = False

    @classmethod
    def of(cls, java: Java, environ: Mapping[str, str] | None = None) -> ClassArchive:
        """Return the archive for a Java and the pyspark that is installed."""
        root = cache_directory(os.environ if environ is None else environ) / "class-archive"
        program = (java.home / "bin" / "java" if java.home else Path(shutil.which("java") or "java")).resolve()
        spec = importlib.util.find_spec("pyspark")
        jars = Path(spec.origin if spec and spec.origin else "").parent / "jars"
        parts = []
        for path in (program, jars):
            with contextlib.suppress(OSError):
                parts.append(f"{path} {path.stat().st_mtime_ns}")
        return cls(root / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16])

    def options(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the options for the JVM that is about to start: to use the archive, to record it, or none."""
        environ = os.environ if environ is None else environ
        said = " ".join(environ.get(name, "") for name in _OPTIONS_FROM)
        if any(word in said for word in _OWN_CHOICE) or " " in str(self._file):
            return ""
        try:
            if self._is_whole():
                os.utime(self._folder)
                return f"-XX:SharedArchiveFile={self._file}"
            self._remove_old()
            self._folder.mkdir(parents=True, mode=0o700)
        except OSError:  # another run records it, or the cache cannot be written to
            return ""
        self._records = True
        return f"-XX:ArchiveClassesAtExit={self._file}"

    def give_up(self) -> None:
        """Let this run record nothing: it failed, and would leave an archive that lacks classes for good."""
        if self._records:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _is_whole(self) -> bool:
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            return any(file.read(_HEADER_BYTES))
        return False

    def _remove_old(self) -> None:
        now, kept_bytes = time.time(), 0
        folders = {folder: folder.stat().st_mtime for folder in self._folder.parent.glob("*")}
        for folder in sorted(folders, key=folders.__getitem__, reverse=True):
            allowed_s = _UNFINISHED_S if folder == self._folder else _UNUSED_S
            kept_bytes += sum(file.stat().st_size for file in folder.glob("*"))
            if now - folders[folder] > allowed_s or kept_bytes > _OTHERS_BYTES_MAX:
                shutil.rmtree(folder, ignore_errors=True)
