"""`fanout init`: write the first configuration of a secondary, for a primary that was tried."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fanout.cli.output.exit_codes import ExitCode
from fanout.cli.probing.probe import (
    SET_SIZE,
    CaFileOption,
    CertificateOption,
    DigestOption,
    KeyOption,
    PasswordFileOption,
    SetSizeOption,
    UserOption,
    best_rights,
    checked_link,
    told_faults,
    tried,
)

if TYPE_CHECKING:
    from fanout.probe.advice import Advice

__all__ = ["register"]

_TIMEOUT_S: Final = 120.0
_PASSWORD_VARIABLE: Final = "FANOUT_INIT_PASSWORD"
"""Environment variable of this process that has a typed password until it is in a file."""
_MQTT_PORT: Final = 1884
"""Port of the first node on a machine, beside a primary at 1883."""
_PORTS: Final = 100
"""Ports that are tried, from the first one on, until one is free."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 written; 1 no link can replicate from it; 2 a wrong option, or the file exists; 3"
        " unreachable; 5 refused."
    )(init)


def init(
    *,
    primary: Annotated[str | None, typer.Option(metavar="URL", help="The primary's address, as a link has it.")] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", metavar="FILTER", help="Topic Filter to replicate; may be repeated.")
    ] = None,
    username: UserOption = None,
    password_file: PasswordFileOption = None,
    ca_file: CaFileOption = None,
    server_certificate_sha256: DigestOption = None,
    client_certificate_file: CertificateOption = None,
    client_key_file: KeyOption = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path("secondary.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    set_size: SetSizeOption = SET_SIZE,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    start: Annotated[bool, typer.Option("--start", help="Then run the secondary.")] = False,
) -> None:
    """Write a first configuration, for a broker that is tried.

    On a terminal it asks for what is not given. It prints the access rules that the user of the link needs.
    """
    from fanout.cli.output.terminal import show, show_to_paste
    from fanout.config.loading import parse_config
    from fanout.errors import PrimaryRefused
    from fanout.probe.advice import advise

    asks = sys.stdin.isatty() and not yes
    read = {one.resolve() for one in (password_file, ca_file, client_certificate_file, client_key_file) if one}
    if force and out.resolve() in read:
        raise typer.BadParameter("it would replace a file that another option names", param_hint="--force")
    _check_out(out, force=force)
    if primary is None:
        primary = _asked("Address of the primary", "--primary", asks, default="mqtt://127.0.0.1:1883")
    if not filters:
        filters = _asked("Topic Filters to replicate, with blanks between", "--filter", asks, default="#").split()
    if username is None and asks:
        username = typer.prompt("User Name there, if any", default="", show_default=False, err=True) or None
    keys = {
        "primary": primary,
        "username": username,
        "password_file": password_file,
        "ca_file": ca_file,
        "server_certificate_sha256": server_certificate_sha256,
        "client_certificate_file": client_certificate_file,
        "client_key_file": client_key_file,
    }
    given = {key: str(value) for key, value in keys.items() if value is not None}
    password = _ask_password() if username is not None and password_file is None and asks else ""
    if password:
        _check_out(_password_file(out), force=force)
        os.environ[_PASSWORD_VARIABLE] = password
        given["password_env"] = _PASSWORD_VARIABLE
    port = _free_port(_MQTT_PORT)
    node_id = _node_id(port - _MQTT_PORT + 1)
    try:
        report = tried(checked_link(given, filters), set_size=set_size, timeout_s=_TIMEOUT_S, node_id=node_id)
    except PrimaryRefused as error:
        error.hint = error.hint.replace(f"the password in the variable {_PASSWORD_VARIABLE}", "the typed password")
        raise
    finally:
        os.environ.pop(_PASSWORD_VARIABLE, None)  # a secondary that is started must not have it there
    if given.pop("password_env", None):
        given["password_file"] = str(_password_file(out))
    del given["primary"]
    http_listen = f"127.0.0.1:{_free_port(8080)}"
    advice = advise(
        report,
        topic_filters=filters,
        keys=given,
        node_id=node_id,
        listen=f"mqtt://127.0.0.1:{port}",
        http_listen=http_listen,
    )
    if advice.trial.is_usable:
        parse_config(advice.toml, path=str(out), role="secondary")  # nothing is written that a node refuses
        if password:
            _write(_password_file(out), f"{password}\n", mode=0o600, force=force)
        _write(out, advice.toml, mode=0o640, force=force)
    told_faults(report)
    _tell_verdict(advice, report.server)
    if advice.trial.is_usable and not advice.trial.topics:
        show(
            "", f"No retained message came for {', '.join(filters)}: are the filter and the rights to read as you mean?"
        )
    if not advice.trial.is_usable:
        raise typer.Exit(ExitCode.NO)
    address = "" if http_listen.endswith(":8080") else f" {http_listen}"
    show("", f"{out} is written. Start the secondary, and ask it from another shell:", "")
    show_to_paste(f"  fanout secondary --config {out}\n  fanout ready --wait 60{address}")
    show("", f"In a browser: http://{http_listen}/")
    if not advice.trial.is_proved:
        show("", "For a proof, give the user those rights, and run this again with --force.")
        if not report.server:
            show(f"In the syntax of your broker: fanout check {out} --acl --for mosquitto (or emqx, hivemq, flashmq)")
    if start or (asks and typer.confirm("Start it now?", default=True, err=True)):
        # A process of its own has only what a node needs; -P: and no modules of the current directory.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "fanout", "secondary", "--config", str(out)])


def _check_out(path: Path, *, force: bool) -> None:
    """Check that a file can be written, before the primary is tried.

    Raises:
        typer.BadParameter: It exists, or its directory does not, or takes no file of this user.
    """
    fault = ""
    if path.is_symlink() or (path.exists() and not (force and path.is_file())):
        fault = f"{path} exists; give another name, or --force to replace a file"
    elif not path.parent.is_dir():
        fault = f"there is no directory {path.parent}; make it, or give another name"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        fault = f"you may not write into the directory {path.parent}; give another name"
    if fault:
        raise typer.BadParameter(fault, param_hint="--out")


def _asked(question: str, option: str, asks: bool, *, default: str) -> str:
    """Return the answer to a question.

    Raises:
        typer.BadParameter: Nobody is asked.
    """
    if not asks:
        raise typer.BadParameter("it is required, unless a terminal can be asked", param_hint=option)
    answer: str = typer.prompt(question, default=default, err=True)
    return answer


def _ask_password() -> str:
    """Return the password that is typed; empty for none.

    Raises:
        typer.BadParameter: It is not UTF-8.
    """
    try:
        answer: str = typer.prompt("Password, if any", default="", show_default=False, hide_input=True, err=True)
        answer.encode()
    except UnicodeError as error:
        problem = "what was typed is not UTF-8; write it to a file, and name that"
        raise typer.BadParameter(problem, param_hint="--password-file") from error
    return answer


def _password_file(out: Path) -> Path:
    """Return the file of a typed password, which is never that of the configuration."""
    return out.with_name(f"{out.name}.password") if out.suffix == ".password" else out.with_suffix(".password")


def _node_id(number: int) -> str:
    """Return the name of this machine, as far as a node may have it; with a number for all but its first node."""
    from fanout.config.values import NAME_CHARACTERS_MAX

    suffix = f"-{number}" if number > 1 else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname().partition(".")[0]).lstrip("._-")
    return f"{name[: NAME_CHARACTERS_MAX - len(suffix)] or 'edge-1'}{suffix}"


def _free_port(first: int) -> int:
    """Return the first free TCP port of the loopback address; the first of all if many are taken."""
    for port in range(first, first + _PORTS):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return first


def _tell_verdict(advice: Advice, server: str) -> None:
    from fanout.cli.output.terminal import columns, outcome_text, show, show_to_paste

    best = advice.trial
    if not best.is_proved:
        table = columns("check", "result", "seen")
        for finding in best.findings:
            table.add_row(finding.check, outcome_text(finding.outcome.value), finding.seen)
        show(table, "")
    verdict = "yes" if best.is_proved else "without proof" if best.is_usable else "no"
    show(f"{verdict}: {advice.reason}", *([f"  {best.hint}"] if best.hint and not best.is_usable else []))
    show("", "Rights that the user of this link needs there, if the primary has access rules:", "")
    show_to_paste(best_rights(advice, server))


def _write(path: Path, text: str, *, mode: int, force: bool) -> None:
    """Write a new file; with `force` in place of one that exists.

    Raises:
        FanoutError: It exists by now, or cannot be written.
    """
    from fanout.errors import FanoutError, system_reason

    try:
        if force:
            path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FanoutError(f"cannot write {path}: {system_reason(error)}", hint="Give another --out.") from error
