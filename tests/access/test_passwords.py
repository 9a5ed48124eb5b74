"""Tests of `fanout.access.passwords`: the format, round trips, atomic writing, permissions."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from fanout.access import passwords
from fanout.access.passwords import (
    PasswordFile,
    check_user_name,
    hash_password,
    load_password_file,
    parse_password_file,
    update_password_file,
)
from fanout.errors import ConfigError, PasswordFileError
from tests.access.pieces import cheap_hash

HASH = cheap_hash(b"secret")
OTHER = cheap_hash(b"other")

USERS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda name: not passwords._user_name_problem(name)
)


def faults_of(text: str) -> list[tuple[str, str]]:
    """Return what is wrong with the text of a file: the line, and the problem."""
    with pytest.raises(ConfigError) as caught:
        parse_password_file(text, path="users")
    assert all(fault.hint for fault in caught.value.faults)
    return [(fault.key, fault.problem) for fault in caught.value.faults]


def test_hash_is_argon2id_of_the_recommended_cost() -> None:
    """The encoded form names its cost, and Argon2 itself accepts the password."""
    stored = hash_password(b"secret")
    assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert PasswordHasher().verify(stored, b"secret")
    assert stored != hash_password(b"secret")
    assert parse_password_file(f"a:{stored}\n", path="users").users == {"a": stored}


def test_comments_and_empty_lines_are_kept() -> None:
    """What an operator wrote into the file survives its changes."""
    text = f"# plant\nalice:{HASH}\n\n  \nbob smith:{HASH}\n"
    file = parse_password_file(text, path="users")
    assert dict(file.users) == {"alice": HASH, "bob smith": HASH}
    changed = file.with_user("alice", OTHER).with_user("eve", HASH).without_user("bob smith")
    assert changed.lines == ("# plant", f"alice:{OTHER}", "", "  ", f"eve:{HASH}")
    assert dict(changed.users) == {"alice": OTHER, "eve": HASH}


def test_line_ends_of_other_systems_are_no_fault() -> None:
    """A file that was edited elsewhere is read."""
    assert dict(parse_password_file(f"a:{HASH}\r\nb:{HASH}", path="users").users) == {"a": HASH, "b": HASH}
    assert parse_password_file("", path="users").users == {}


def test_every_fault_is_told_at_once_and_no_secret() -> None:
    """Each with its line; what stands behind the colon may be a password and is not repeated."""
    text = "\n".join(
        [
            "no-colon",
            "alice:plaintext-password",
            f":{HASH}",
            f" bob:{HASH}",
            f"c\td:{HASH}",
            f"e:{HASH}",
            f"e:{HASH}",
            "f:$2b$12$abcdefghijklmnopqrstuu",
            f"g:{HASH.replace('m=8', 'm=9999999')}",
            f"h:{HASH.replace('t=1', 't=0')}",
            f"i:{HASH[:-40]}",
            f"j:{HASH.replace('argon2id', 'argon2i')}",
            f"{'k' * 70_000}:{HASH}",
        ]
    )
    faults = faults_of(text)
    assert [key for key, _ in faults] == [f"line {number}" for number in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13)]
    assert [problem.split(":")[0] for _, problem in faults] == [
        "there is no colon between user and hash",
        "the text after the colon is not an Argon2id hash",
        "the user name is empty",
        "the user name begins or ends with a blank",
        "the user name contains a character that cannot be printed",
        "the user of line 6 is here again",
        "the text after the colon is not an Argon2id hash",
        "the hash costs too much, or nothing",
        "the hash costs too much, or nothing",
        "the hash is damaged",
        "the text after the colon is not an Argon2id hash",
        "the user name is too long for MQTT",
    ]
    assert "plaintext" not in str(faults)


def test_a_hash_whose_base64_is_broken_is_damaged() -> None:
    """Twenty-one characters of Base64 are not whole bytes."""
    head, salt, digest = HASH.rsplit("$", 2)
    assert faults_of(f"a:{head}${salt[:21]}${digest}") == [("line 1", "the hash is damaged")]


@pytest.mark.parametrize("name", ["", "#a", "a:b", " a", "a ", "a\n", "a\0", "\ud800", "\ufeffa"])
def test_names_that_cannot_stand_in_a_file_are_refused(name: str) -> None:
    """They would be read as something else."""
    with pytest.raises(PasswordFileError, match="the user name") as caught:
        check_user_name(name)
    assert caught.value.hint


@given(st.dictionaries(USERS, st.sampled_from([HASH, OTHER]), max_size=5))
def test_round_trip(users: dict[str, str]) -> None:
    """Whatever names are put in come out again."""
    file = PasswordFile()
    for user, stored in users.items():
        file = file.with_user(user, stored)
    text = "".join(f"{line}\n" for line in file.lines)
    assert dict(parse_password_file(text, path="users").users) == users


def test_writing_makes_a_file_for_its_owner_only(tmp_path: Path) -> None:
    """A new file is private, and is read back."""
    path = tmp_path / "users"
    file = update_password_file(path, lambda former: former.with_user("alice", HASH))
    assert path.read_text() == f"alice:{HASH}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (file.exposure, load_password_file(path)) == ("", file)
    assert os.listdir(tmp_path) == ["users"]


def test_writing_keeps_the_mode(tmp_path: Path) -> None:
    """Whoever could read the file still can."""
    path = tmp_path / "users"
    path.write_text("# users\n")
    path.chmod(0o640)
    update_password_file(path, lambda former: former.with_user("alice", HASH))
    assert path.read_text() == f"# users\nalice:{HASH}\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_writing_follows_no_link(tmp_path: Path) -> None:
    """Whoever may write in the directory could lead root to another user's file; the error names the file."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("# users\n")
    link.symlink_to(real)
    with pytest.raises(PasswordFileError, match="is a symbolic link") as caught:
        update_password_file(link, lambda former: former.with_user("alice", HASH))
    assert str(real) in caught.value.hint
    assert real.read_text() == "# users\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_writing_keeps_the_owner(tmp_path: Path) -> None:
    """When root changes the file of the node's user, the node can still read it."""
    path = tmp_path / "users"
    path.write_text("")
    os.chown(path, 65_534, 65_534)
    update_password_file(path, lambda former: former.with_user("alice", HASH))
    assert (path.stat().st_uid, path.stat().st_gid) == (65_534, 65_534)


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left behind either."""
    path = tmp_path / "users"
    path.write_text(f"alice:{HASH}\n")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PasswordFileError, match="no space left on device") as caught:
        update_password_file(path, lambda former: former.with_user("bob", HASH))
    assert caught.value.hint
    assert path.read_text() == f"alice:{HASH}\n"
    assert os.listdir(tmp_path) == ["users"]


def test_a_missing_directory_says_what_to_check(tmp_path: Path) -> None:
    """It is not made."""
    with pytest.raises(PasswordFileError, match="no such file or directory"):
        update_password_file(tmp_path / "none" / "users", lambda former: former)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """Each waits for its turn, and readers see whole files only."""
    path = tmp_path / "users"
    path.write_text("")

    def add(number: int) -> None:
        update_password_file(path, lambda former: former.with_user(f"user-{number}", HASH))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        load_password_file(path)
    for thread in threads:
        thread.join()
    assert set(load_password_file(path).users) == {f"user-{number}" for number in range(8)}


def test_removing_an_unknown_user_is_an_error() -> None:
    """It is more likely a slip than done already."""
    with pytest.raises(PasswordFileError, match='there is no user "bob"'):
        PasswordFile().without_user("bob")


@pytest.mark.parametrize(
    ("mode", "exposure"), [(0o600, ""), (0o640, ""), (0o644, "can read it"), (0o602, "can write it")]
)
def test_a_file_that_others_can_reach_is_exposed(tmp_path: Path, mode: int, exposure: str) -> None:
    """It is still read; who starts the node is told."""
    path = tmp_path / "users"
    path.write_text(f"alice:{HASH}\n")
    path.chmod(mode)
    file = load_password_file(path)
    assert file.exposure.endswith(exposure)
    assert bool(file.exposure) is bool(exposure)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    """Missing, or not text."""
    with pytest.raises(ConfigError, match="cannot read the password file: no such file"):
        load_password_file(tmp_path / "none")
    path = tmp_path / "users"
    path.write_bytes(b"# one\nal\xffce:")
    with pytest.raises(ConfigError, match="line 2: this is not UTF-8"):
        load_password_file(path)
