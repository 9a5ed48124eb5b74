"""`fanout passwd`: write the file of users and passwords that `access.password_file` names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fanout.access.passwords import PasswordFile

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog="Exit codes: 0 done, 2 a wrong file, name or password, 5 not written.")(passwd)


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file; made when it does not exist.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="The User Name, as the client sends it.")],
    batch: Annotated[
        bool, typer.Option("--batch", help="Read the password from standard input, also on a terminal.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the user.")] = False,
) -> None:
    """Add a user to a password file, or change its password.

    On a terminal the password is asked for twice and not shown; otherwise it is standard input, without its
    last line end. A running node takes the change when it reloads.
    """
    from fanout.access.passwords import check_user_name, hash_password, update_password_file
    from fanout.errors import PasswordFileError

    if batch and delete:
        raise typer.BadParameter("--batch and --delete exclude each other: removing a user needs no password")
    try:
        check_user_name(user)
    except PasswordFileError as error:
        raise typer.BadParameter(error.message, param_hint="USER") from error
    if delete:
        if not file.exists():
            raise PasswordFileError(f"there is no file {file}", hint="Check the path.")
        done = update_password_file(file, lambda former: former.without_user(user))
        _tell(f"{user} removed from {file}", done)
        return
    password = _read() if batch or not sys.stdin.isatty() else _ask()
    stored = hash_password(password)
    existed = False

    def change(former: PasswordFile) -> PasswordFile:
        nonlocal existed
        existed = user in former.users
        return former.with_user(user, stored)

    done = update_password_file(file, change)
    _tell(f"password of {user} changed in {file}" if existed else f"{user} added to {file}", done)


def _ask() -> bytes:
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt="Again", err=True)
    return _checked(password.encode(errors="surrogateescape"))


def _read() -> bytes:
    from fanout.access.passwords import PASSWORD_BYTES_MAX

    # One line end does not belong to the password; the extra byte reveals one that is too long.
    return _checked(re.sub(rb"\r?\n\Z", b"", typer.get_binary_stream("stdin").read(PASSWORD_BYTES_MAX + 3)))


def _checked(password: bytes) -> bytes:
    from fanout.access.passwords import PASSWORD_BYTES_MAX

    if not password or b"\n" in password or len(password) > PASSWORD_BYTES_MAX:
        problem = "is empty" if not password else "has several lines" if b"\n" in password else "is too long for MQTT"
        raise typer.BadParameter(f"the password {problem}")
    return password


def _tell(done: str, file: PasswordFile) -> None:
    from fanout.cli.output.terminal import error_console, show

    show(done)
    if file.exposure:
        show(f"warning: {file.exposure}; run: chmod o= on it", console=error_console())
