"""Password file: one line `user:hash` for each user, `#` before a comment.

Owns its format, reading, and atomic writing. The hash is Argon2id in the usual encoded form, which names its own cost,
so stronger and weaker hashes may stand side by side. `fanout.access.password_checks` checks passwords.

No error repeats the text after the colon: it may be a password that was written there by mistake.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from argon2 import PasswordHasher
from argon2.low_level import Type

from fanout.errors import ConfigError, ConfigFault, PasswordFileError, system_reason
from fanout.mqtt.data_representation import MAX_STRING_BYTES
from fanout.runtime.directories import sync_directory
from fanout.runtime.regular_files import open_regular

__all__ = [
    "PASSWORD_BYTES_MAX",
    "PasswordFile",
    "check_user_name",
    "exposure_of",
    "hash_password",
    "load_password_file",
    "load_passwords",
    "parse_password_file",
    "update_password_file",
]

PASSWORD_BYTES_MAX: Final = MAX_STRING_BYTES
"""Longest password that CONNECT carries (MQTT 5, section 3.1.3.6)."""

# The minimum that OWASP recommends; a node runs many checks at a time, and each takes this memory.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, hash_len=32, salt_len=16, type=Type.ID)

_HASH = re.compile(
    r"\$argon2id\$v=19\$m=(?P<kib>\d{1,9}),t=(?P<passes>\d{1,9}),p=(?P<lanes>\d{1,9})"
    r"\$(?P<salt>[A-Za-z0-9+/]+)\$(?P<digest>[A-Za-z0-9+/]+)"
)
# A costlier hash would stop the node instead of a guesser.
_FILE_BYTES_MAX: Final = 256 << 20
"""Longest password file that is read: some million users."""
_KIB_MAX: Final = 1024 * 1024
_PASSES_MAX: Final = 100
_LANES_MAX: Final = 16

_MAKE_ANEW = "Make the line anew with fanout passwd."


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """Content of a password file."""

    lines: tuple[str, ...] = ()
    """Every line, without its end."""
    users: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The hash of each user."""
    exposure: str = ""
    """Text of a warning about permissions of the file; empty for none."""

    def with_user(self, user: str, stored: str) -> PasswordFile:
        """Return a file in which `user` has the hash `stored`: on its line, or on a new one at the end."""
        line = f"{user}:{stored}"
        if user in self.users:
            lines = tuple(line if _user_of(each) == user else each for each in self.lines)
        else:
            lines = (*self.lines, line)
        return PasswordFile(lines, MappingProxyType({**self.users, user: stored}))

    def without_user(self, user: str) -> PasswordFile:
        """Return a file without `user`.

        Raises:
            PasswordFileError: There is no such user.
        """
        if user not in self.users:
            raise PasswordFileError(f'there is no user "{user}"', hint="Names are told apart by upper and lower case.")
        lines = tuple(each for each in self.lines if _user_of(each) != user)
        return PasswordFile(lines, MappingProxyType({name: self.users[name] for name in self.users if name != user}))


def check_user_name(user: str) -> None:
    """Check that a User Name can stand in a password file.

    Raises:
        PasswordFileError: When it cannot.
    """
    problem = _user_name_problem(user)
    if problem:
        raise PasswordFileError(f"the user name {problem}", hint="Choose another name.")


def hash_password(password: bytes) -> str:
    """Return a hash of `password` for a password file; takes some 50 ms and 19 MiB."""
    return _HASHER.hash(password)


def parse_password_file(text: str, *, path: str, exposure: str = "") -> PasswordFile:
    """Read the text of a password file.

    Args:
        text: Its content.
        path: Name of the file in errors.
        exposure: As in `PasswordFile`.

    Raises:
        ConfigError: With every line that is wrong.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    lines = [line.removesuffix("\r") for line in lines]
    users: dict[str, str] = {}
    seen: dict[str, int] = {}
    faults: list[ConfigFault] = []
    for number, line in enumerate(lines, start=1):
        user = _user_of(line)
        if user is None:
            continue
        fault = _line_fault(line, user)
        if not fault and user in seen:
            fault = (f"the user of line {seen[user]} is here again", "Remove one of the two lines.")
        if fault:
            faults.append(ConfigFault(f"line {number}", *fault))
            continue
        seen[user] = number
        users[user] = line[len(user) + 1 :]
    if faults:
        raise ConfigError(path, tuple(faults))
    return PasswordFile(tuple(lines), MappingProxyType(users), exposure)


def load_passwords(path: Path | None) -> PasswordFile | None:
    """Read the password file that a configuration names, as `load_password_file` does; return None for none."""
    return None if path is None else load_password_file(path)


def load_password_file(path: Path) -> PasswordFile:
    """Read a password file; it may take a while, so call it in a thread.

    Raises:
        ConfigError: When it cannot be read, with the reason, or is not legal, with every fault.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"it is larger than {_FILE_BYTES_MAX >> 20} MiB")
    except OSError as error:
        hint = "Check the path and its permissions, or make the file with fanout passwd."
        fault = ConfigFault("", f"cannot read the password file: {system_reason(error)}", hint)
        raise ConfigError(str(path), (fault,)) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fault = ConfigFault(f"line {line}", "this is not UTF-8", "Save the file as UTF-8.")
        raise ConfigError(str(path), (fault,)) from error
    return parse_password_file(text, path=str(path), exposure=exposure_of(mode))


def update_password_file(path: Path, change: Callable[[PasswordFile], PasswordFile]) -> PasswordFile:
    """Change a password file, or create one that only its owner can read.

    The file is replaced atomically: readers see the old or the new one. Other calls for files in the same directory
    wait for their turn, so no change is lost. Mode and owner stay.

    Args:
        path: The file; no symbolic link, so that nobody who may write in its directory chooses another file.
        change: Gets the content of the file, empty if it does not exist, and returns the new content.

    Returns:
        The new content.

    Raises:
        ConfigError: The file exists and is not legal.
        PasswordFileError: It cannot be written, or is a symbolic link; it is unchanged.
    """
    if path.is_symlink():
        raise PasswordFileError(
            f"{path} is a symbolic link", hint=f"Give the file that it leads to, if that is right: {path.resolve()}"
        )
    target = path.resolve()
    try:
        with _locked(target.parent):
            try:
                status = target.stat()
            except FileNotFoundError:
                status = None
            file = change(PasswordFile() if status is None else load_password_file(target))
            _replace(target, file, status)
            return PasswordFile(file.lines, file.users, exposure_of(target.stat().st_mode))
    except OSError as error:
        hint = "Check that the directory exists, and that this user may write there and owns the file."
        raise PasswordFileError(f"cannot write the password file {path}: {system_reason(error)}", hint=hint) from error


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(target: Path, file: PasswordFile, status: os.stat_result | None) -> None:
    descriptor, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as out:
            if status is not None:
                ours = os.fstat(descriptor)
                if (ours.st_uid, ours.st_gid) != (status.st_uid, status.st_gid):
                    os.fchown(descriptor, status.st_uid, status.st_gid)  # or the node could not read it any more
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            out.write("".join(f"{line}\n" for line in file.lines).encode())
            out.flush()
            os.fsync(descriptor)
        os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    sync_directory(target.parent)


def _user_of(line: str) -> str | None:
    """Return the text before the colon; None for a comment or an empty line."""
    return None if line.startswith("#") or not line.strip() else line.partition(":")[0]


def _user_name_problem(user: str) -> str:
    if not user:
        return "is empty"
    if user.startswith("#"):
        return 'begins with "#", as a comment does'
    if ":" in user:
        return "contains a colon, which ends a name"
    if user != user.strip():
        return "begins or ends with a blank"
    if not all(character.isprintable() for character in user):
        return "contains a character that cannot be printed"
    return "is too long for MQTT" if len(user.encode()) > MAX_STRING_BYTES else ""


def _line_fault(line: str, user: str) -> tuple[str, str] | None:
    if len(user) == len(line):
        return "there is no colon between user and hash", _MAKE_ANEW
    problem = _user_name_problem(user)
    if problem:
        return f"the user name {problem}", _MAKE_ANEW
    problem = _hash_problem(line[len(user) + 1 :])
    return (problem, _MAKE_ANEW) if problem else None


def _hash_problem(stored: str) -> str:
    match = _HASH.fullmatch(stored)
    if match is None:
        return "the text after the colon is not an Argon2id hash"
    kib, passes, lanes = int(match["kib"]), int(match["passes"]), int(match["lanes"])
    if not (1 <= passes <= _PASSES_MAX and 1 <= lanes <= _LANES_MAX and 8 * lanes <= kib <= _KIB_MAX):
        return f"the hash costs too much, or nothing: m={kib}, t={passes}, p={lanes}"
    if not (8 <= _length(match["salt"]) <= 64 and 16 <= _length(match["digest"]) <= 64):
        return "the hash is damaged"
    return ""


def _length(text: str) -> int:
    """Return the number of bytes in Base64 without padding; 0 for other text."""
    try:
        return len(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except binascii.Error:
        return 0


def exposure_of(mode: int) -> str:
    """Return who beside owner and group reaches a file with this mode; empty for nobody."""
    if mode & stat.S_IWOTH:
        return "everybody on this machine can write it"
    return "everybody on this machine can read it" if mode & stat.S_IROTH else ""
