"""Only regular files are opened, and no directory is walked twice."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

import pytest

from fanout.access.passwords import load_password_file
from fanout.certificates import file_expiry_s, load_authorities, load_chain
from fanout.config.passwords import read_count_key, read_token
from fanout.errors import ConfigError
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


@pytest.mark.timeout(20)
def test_files_of_a_configuration_that_are_no_regular_ones_are_refused_at_once(tmp_path: Path) -> None:
    """A node that starts or reloads does not wait for somebody who writes to a named pipe."""
    pipe, circle = tmp_path / "pipe", tmp_path / "circle"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path, reason in ((pipe, "a named pipe"), (circle, "symbolic links"), (Path("/dev/zero"), "a device")):
        assert reason in load_chain(context, path, path)[0][1]
        assert reason in load_authorities(context, path, name="ca_file")[0][1]
        assert file_expiry_s(path) is None
        for read in (load_password_file, read_token, read_count_key):
            with pytest.raises(ConfigError, match=reason):
                read(path)
