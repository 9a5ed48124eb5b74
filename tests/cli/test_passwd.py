"""`fanout passwd`: from a pipe, on a terminal, and what it refuses."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from typer.testing import CliRunner

from fanout.access.passwords import load_password_file
from fanout.cli.app import app
from tests.cli.processes import COMMAND, run_fanout


def password_matches(file: Path, user: str, password: bytes) -> bool:
    """Check a password with Argon2 itself; raises when it is wrong."""
    return PasswordHasher().verify(load_password_file(file).users[user], password)


def run_on_terminal(file: Path, *answers: str) -> tuple[int, str]:
    """Run the command on a terminal, answer its questions, and return its exit code and what was shown."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "passwd", str(file), "alice"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,  # else it would ask on the terminal of whoever runs the tests
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)
    shown = b""
    for answer in answers:
        asked = len(shown)
        while not shown[asked:].endswith(b": "):
            assert select.select([master], [], [], 30)[0], shown
            shown += os.read(master, 65_536)
        os.write(master, f"{answer}\n".encode())
    try:
        while piece := os.read(master, 65_536):
            shown += piece
    except OSError:  # Linux: the process closed the terminal
        pass
    os.close(master)
    return process.wait(timeout=30), shown.decode()


def test_password_from_a_pipe(runner: CliRunner, tmp_path: Path) -> None:
    """Standard input without its last line end; the file is made for its owner only."""
    file = tmp_path / "users"
    answer = runner.invoke(app, ["passwd", str(file), "alice"], input="two words \n")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (0, f"alice added to {file}\n", "")
    assert password_matches(file, "alice", b"two words ")
    assert file.stat().st_mode & 0o777 == 0o600


def test_changing_and_removing(runner: CliRunner, tmp_path: Path) -> None:
    """The rest of the file stays as it is."""
    file = tmp_path / "users"
    for user in ("alice", "bob"):
        runner.invoke(app, ["passwd", str(file), user, "--batch"], input=b"first\r\n")
    before = load_password_file(file).users["bob"]
    answer = runner.invoke(app, ["passwd", str(file), "alice"], input="second")
    assert answer.stdout == f"password of alice changed in {file}\n"
    assert password_matches(file, "alice", b"second")
    answer = runner.invoke(app, ["passwd", "--delete", str(file), "alice"])
    assert answer.stdout == f"alice removed from {file}\n"
    assert load_password_file(file).users == {"bob": before}


def test_passwords_may_be_any_bytes(runner: CliRunner, tmp_path: Path) -> None:
    """MQTT makes no text of them."""
    file = tmp_path / "users"
    assert runner.invoke(app, ["passwd", str(file), "alice"], input=b"\xff\0\x01").exit_code == 0
    assert password_matches(file, "alice", b"\xff\0\x01")


def test_an_exposed_file_is_told(runner: CliRunner, tmp_path: Path) -> None:
    """The work is done, and standard error has a warning."""
    file = tmp_path / "users"
    file.touch()
    file.chmod(0o644)
    answer = runner.invoke(app, ["passwd", str(file), "alice"], input="x")
    assert (answer.exit_code, answer.stdout) == (0, f"alice added to {file}\n")
    assert answer.stderr == "warning: everybody on this machine can read it; run: chmod o= on it\n"


def test_on_a_terminal_it_asks_twice_and_shows_nothing(tmp_path: Path) -> None:
    """A slip is told and asked again; what was typed is not on the screen."""
    file = tmp_path / "users"
    code, shown = run_on_terminal(file, "hunter-2", "hunter-3", "hunter-2", "hunter-2")
    assert code == 0
    assert "hunter" not in shown
    assert shown.count("Password: ") == 2
    assert shown.count("Again: ") == 2
    assert "alice added to" in shown
    assert password_matches(file, "alice", b"hunter-2")


@pytest.mark.parametrize(
    ("arguments", "typed", "problem"),
    [
        (["a:b"], "x", "the user name contains a colon"),
        ([""], "x", "the user name is empty"),
        (["alice"], "", "the password is empty"),
        (["alice"], "\n", "the password is empty"),
        (["alice"], "a\nb\n", "the password has several lines"),
        (["alice"], "x" * 65_536, "the password is too long"),
        (["alice", "--batch", "--delete"], "x", "exclude each other"),
    ],
)
def test_a_wrong_command_line_changes_nothing(
    runner: CliRunner, tmp_path: Path, arguments: list[str], typed: str, problem: str
) -> None:
    """Exit 2, with the reason."""
    answer = runner.invoke(app, ["passwd", str(tmp_path / "users"), *arguments], input=typed, terminal_width=200)
    assert answer.exit_code == 2
    assert problem in " ".join(answer.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_the_longest_password(runner: CliRunner, tmp_path: Path) -> None:
    """As long as CONNECT can carry, with a line end behind it."""
    file = tmp_path / "users"
    assert runner.invoke(app, ["passwd", str(file), "alice"], input="x" * 65_535 + "\r\n").exit_code == 0
    assert password_matches(file, "alice", b"x" * 65_535)


def test_what_cannot_be_done(runner: CliRunner, tmp_path: Path) -> None:
    """A user or a file that is not there, a directory that is not there: exit 5."""
    file = tmp_path / "users"
    answer = runner.invoke(app, ["passwd", "--delete", str(file), "alice"])
    assert (answer.exit_code, "there is no file" in answer.stderr) == (5, True)
    file.touch()
    answer = runner.invoke(app, ["passwd", "--delete", str(file), "alice"])
    assert (answer.exit_code, 'there is no user "alice"' in answer.stderr) == (5, True)
    answer = runner.invoke(app, ["passwd", str(tmp_path / "none" / "users"), "alice"], input="x")
    assert (answer.exit_code, "cannot write the password file" in answer.stderr) == (5, True)


def test_a_faulty_file_is_not_touched(runner: CliRunner, tmp_path: Path) -> None:
    """Exit 2, every fault, and no secret."""
    file = tmp_path / "users"
    file.write_text("bob:plaintext\n")
    answer = runner.invoke(app, ["passwd", str(file), "alice"], input="x")
    assert answer.exit_code == 2
    assert "line 1: the text after the colon is not an Argon2id hash" in answer.stderr
    assert "plaintext" not in answer.stderr
    assert file.read_text() == "bob:plaintext\n"


def test_it_loads_no_server_and_no_client(tmp_path: Path) -> None:
    """A short command stays one."""
    import sys

    code = (
        "import sys\n"
        "from fanout.access import passwords\n"
        "import fanout.cli.passwd\n"
        "print([n for n in ('asyncio', 'httpx', 'pydantic', 'fastapi', 'pyarrow') if n in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "[]\n"


def test_help() -> None:
    """The help names what it takes."""
    answer = run_fanout("passwd", "--help")
    assert answer.returncode == 0
    for word in ("FILE", "USER", "--batch", "--delete", "Exit codes"):
        assert word in answer.stdout
