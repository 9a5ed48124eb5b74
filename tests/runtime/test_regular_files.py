"""Only regular files are opened, and no directory is walked twice."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fanout.runtime.regular_files import files_below, open_regular


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """A named pipe, a device, a socket and a directory each get their own reason, at once."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path, reason in (
            (tmp_path / "pipe", "it is a named pipe"),
            (tmp_path / "socket", "it is a socket"),
            (tmp_path, "it is a directory"),
            (Path("/dev/null"), "it is a device"),
        ):
            with pytest.raises(OSError, match=reason) as caught:
                open_regular(path)
            assert caught.value.filename == str(path)
    (tmp_path / "file").write_bytes(b"here")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"here"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "loop")


@pytest.mark.timeout(20)
def test_a_directory_is_walked_once(tmp_path: Path) -> None:
    """However many symbolic links lead to it, also from below it; other links are followed."""
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.parquet").write_bytes(b"")
    (tmp_path / "root" / "a" / "near.parquet").write_bytes(b"")
    (tmp_path / "root" / "a" / ".hidden.parquet").write_bytes(b"")
    (tmp_path / "root" / "a" / "up").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "root")
    (tmp_path / "elsewhere" / "itself").symlink_to(tmp_path / "elsewhere" / "itself")
    found = sorted(Path(path).name for path in files_below(tmp_path / "root", suffix=".parquet"))
    assert found == ["far.parquet", "near.parquet"]
    os.mkfifo(tmp_path / "root" / "a" / "pipe.parquet")
    with pytest.raises(OSError, match="named pipe") as caught:
        list(files_below(tmp_path / "root", suffix=".parquet"))
    assert str(caught.value.filename).endswith("a/pipe.parquet")
