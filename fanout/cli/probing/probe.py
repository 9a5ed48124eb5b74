"""`fanout probe`: try a link at a primary, and print its configuration."""

from __future__ import annotations

import enum
import re
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fanout.cli.output.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.table import Table

    from fanout.config import LinkConfig
    from fanout.errors import ConfigError, TlsFailed
    from fanout.probe.advice import Advice
    from fanout.probe.results import ProbeReport, Trial

__all__ = [
    "SET_SIZE",
    "CaFileOption",
    "CertificateOption",
    "FilterOption",
    "KeyOption",
    "PasswordFileOption",
    "ProbedVersion",
    "SetSizeOption",
    "UserOption",
    "best_rights",
    "checked_link",
    "register",
    "told_faults",
    "tried",
]

_PREFIX = "fanout/probe"
SET_SIZE = 5_003
_TIMEOUT_S = 180.0
_CONTROL_TOPIC = "fanout/control"
"""Default of `control_topic` of a link; the user most likely has rights there."""
_LINK = "primary"
_OPTIONS = {
    "primary": "URL",
    "username": "--username",
    "password_file": "--password-file",
    "password_env": "--password-env",
    "ca_file": "--ca-file",
    "server_certificate_sha256": "--server-certificate-sha256",
    "client_certificate_file": "--client-certificate-file",
    "client_key_file": "--client-key-file",
    "tls_insecure": "--tls-insecure",
    "control_topic": "--prefix",
    "filter": "--filter",
}
"""Keys of a link to the options that they come from."""
_KEYS = re.compile(rf"\b({'|'.join(_OPTIONS.keys() - {'primary', 'filter'})})\b(?: of the link\b)?")

_READ_AGAIN = re.compile(r", which (?:is read again at each attempt|only a restart changes)")
"""Texts on the password of a link that is tried once."""

FilterOption: TypeAlias = Annotated[
    list[str], typer.Option("--filter", metavar="FILTER", help="Topic Filter to replicate; may be repeated.")
]
UserOption: TypeAlias = Annotated[
    str | None, typer.Option("--username", metavar="USER", help="User Name; default: none.")
]
PasswordFileOption: TypeAlias = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="File whose content is the password.")
]
CaFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ca-file", metavar="FILE", help="Certificates of its CAs (PEM); without it, the system's."),
]
DigestOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--server-certificate-sha256", metavar="DIGEST", help="SHA-256 of its certificate, in place of a CA."),
]
CertificateOption: TypeAlias = Annotated[
    Path | None, typer.Option("--client-certificate-file", metavar="FILE", help="Certificate to show (PEM).")
]
KeyOption: TypeAlias = Annotated[Path | None, typer.Option("--client-key-file", metavar="FILE", help="Its key (PEM).")]
SetSizeOption: TypeAlias = Annotated[
    int,
    typer.Option("--set-size", metavar="COUNT", min=0, max=100_000, help="Retained messages to publish; 0 for none."),
]


class ProbedVersion(enum.StrEnum):
    """Protocol versions that are tried."""

    BOTH = "both"
    FIVE = "5"
    THREE = "3.1.1"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 a link can replicate from it with proof; 1 it cannot, or with two-pass only; 3"
        " unreachable; 5 refused, the time was up, or something could not be cleaned up."
    )(probe)


def probe(
    primary: Annotated[str, typer.Argument(metavar="URL", help="The primary's address, as a link has it.")],
    *,
    username: UserOption = None,
    password_file: PasswordFileOption = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that has the password.")
    ] = None,
    ca_file: CaFileOption = None,
    server_certificate_sha256: DigestOption = None,
    client_certificate_file: CertificateOption = None,
    client_key_file: KeyOption = None,
    tls_insecure: Annotated[bool, typer.Option("--tls-insecure", help="Do NOT verify its certificate.")] = False,
    filters: FilterOption,
    mqtt: Annotated[ProbedVersion, typer.Option(help="The protocol versions to try.")] = ProbedVersion.BOTH,
    prefix: Annotated[
        str, typer.Option(metavar="TOPIC", help="Publish below this topic, where the user may write and read.")
    ] = _PREFIX,
    set_size: SetSizeOption = SET_SIZE,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Seconds for all checks together.")
    ] = _TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Try a link at a broker, and print the settings for it.

    It is the link of a node: capability check, snapshot, heartbeats, updates and an audit, over the filter that the
    settings will have. The probe publishes below a unique topic under --prefix, and clears what it retained there.
    """
    from dataclasses import replace

    from fanout.cli.output.terminal import print_json, print_warnings
    from fanout.errors import ConfigFault
    from fanout.probe.advice import advise

    keys = {
        "primary": primary,
        "username": username,
        "password_file": password_file,
        "password_env": password_env,
        "ca_file": ca_file,
        "server_certificate_sha256": server_certificate_sha256,
        "client_certificate_file": client_certificate_file,
        "client_key_file": client_key_file,
        "tls_insecure": tls_insecure or None,
        "control_topic": prefix,
    }
    given = {key: str(value) if isinstance(value, Path) else value for key, value in keys.items() if value is not None}
    link = checked_link(given, filters)
    if prefix == _PREFIX:
        del given["control_topic"]  # the default of a link
        link = replace(link, control_topic=_CONTROL_TOPIC)
    else:
        given["control_topic"] = f"{prefix}/control"  # beside the topics of the probe, which are data
        link = replace(link, control_topic=f"{prefix}/control")
    if tls_insecure:
        print_warnings(
            "the command line",
            [ConfigFault("--tls-insecure", "the certificate is not verified", "Give --ca-file, and leave it out.")],
        )
    versions = {"both": (5, 4), "5": (5,), "3.1.1": (4,)}[mqtt]
    report = tried(link, versions=versions, prefix=prefix, set_size=set_size, timeout_s=timeout)
    del given["primary"]
    advice = advise(report, topic_filters=filters, keys=given)
    rights = best_rights(advice, report.server)
    if as_json:
        print_json(_document(report, advice, rights))
    else:
        _show(report, advice, rights)
    raise typer.Exit(_exit_code(report, advice))


def tried(
    link: LinkConfig,
    *,
    versions: Sequence[int] = (5, 4),
    prefix: str = _PREFIX,
    set_size: int,
    timeout_s: float,
    node_id: str | None = None,
) -> ProbeReport:
    """Return the results of a probe, whose running check a terminal shows.

    Raises:
        FanoutError: The password cannot be read, or the primary cannot be reached or refuses the connection.
    """
    import asyncio

    from fanout.errors import PrimaryRefused, TlsFailed
    from fanout.probe.runner import probe as try_primary

    _check_password(link)
    with _progress() as on_check:
        probing = try_primary(
            link,
            versions=versions,
            prefix=prefix,
            set_size=set_size,
            timeout_s=timeout_s,
            on_check=on_check,
            node_id=node_id,
        )
        try:
            return asyncio.run(probing)
        except TlsFailed as error:
            raise _in_options(error) from error
        except PrimaryRefused as error:
            error.hint = _as_options(_READ_AGAIN.sub("", error.hint))
            raise


def checked_link(keys: Mapping[str, str | bool], filters: Sequence[str]) -> LinkConfig:
    """Return the options as a link, checked like its keys in a configuration.

    Raises:
        ConfigError: One of them is not legal.
    """
    from fanout.config.loading import parse_tables
    from fanout.errors import ConfigError

    link = {"name": _LINK, **keys, "selector": [{"filter": one} for one in filters]}
    try:
        return parse_tables({"node": {"id": "probe"}, "server": {}, "link": [link]}, path="the command line").links[0]
    except ConfigError as error:
        raise _of_options(error) from error


def _of_options(error: ConfigError) -> ConfigError:
    """Return the faults of the link as faults of the options that its keys come from."""
    from fanout.errors import ConfigError, ConfigFault

    faults = (
        ConfigFault(
            _OPTIONS.get(fault.key.rpartition(".")[2], ""),
            _as_options(fault.problem.replace(f' of the link "{_LINK}"', "")),
            _as_options(fault.hint),
        )
        for fault in error.faults
    )
    return ConfigError(error.path, tuple(faults))


def _in_options(error: TlsFailed) -> TlsFailed:
    """Return an error with options in place of keys of a link."""
    from fanout.errors import TlsFailed

    return TlsFailed(address=error.address, problem=_as_options(error.problem), hint=_as_options(error.hint))


def _as_options(text: str) -> str:
    """Return a text about keys of the link as one about the options that they come from."""
    return re.sub(_KEYS, lambda key: _OPTIONS[key[1]], text)


def _check_password(link: LinkConfig) -> None:
    from fanout.config import read_password
    from fanout.errors import ConfigError

    try:
        read_password(link)
    except ConfigError as error:
        raise _of_options(error) from error


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the running check on a terminal."""
    from fanout.cli.output.terminal import error_console, styled

    console = error_console()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("connecting") as status:
        yield lambda check: status.update(styled(check))


def best_rights(advice: Advice, server: str) -> str:
    """Return the access rules that the advised link needs, in the syntax of the server where that is known."""
    from fanout.cli.output.acl import AclSyntax, AclUnwritable, acl_text, syntax_of
    from fanout.config.loading import parse_tables

    config = parse_tables(tomllib.loads(advice.toml), path="the advice")
    (link,) = config.links
    try:
        return acl_text(link, node_id=config.node.id, syntax=syntax_of(server))
    except AclUnwritable:
        return acl_text(link, node_id=config.node.id, syntax=AclSyntax.LIST)


def _show(report: ProbeReport, advice: Advice, rights: str) -> None:
    from fanout.cli.output.terminal import facts, show, show_to_paste

    show(facts(("primary", report.address), ("says it is", report.server or "-")))
    for trial in report.trials:
        show("", trial.settings.text, "", _table(trial))
    show("", "rights that the user of this link needs there", "")
    show_to_paste(rights)
    best = advice.trial
    verdict = "yes" if best.is_proved else "without proof" if best.is_usable else "no"
    show("", f"{verdict}: {advice.reason}", *([f"  {best.hint}"] if best.hint and not best.is_usable else []), "")
    show_to_paste(advice.toml)


def _table(trial: Trial) -> Table:
    from fanout.cli.output.terminal import columns, outcome_text

    table = columns("check", "result", "seen")
    for finding in trial.findings:
        table.add_row(finding.check, outcome_text(finding.outcome.value), finding.seen)
    return table


def _document(report: ProbeReport, advice: Advice, rights: str) -> dict[str, object]:
    best = advice.trial
    return {
        "primary": report.address,
        "server": report.server or None,
        "complete": report.complete,
        "left_behind": report.left_behind or None,
        "can_replicate": best.is_usable,
        "evidence": best.evidence if best.is_usable else None,
        "reason": advice.reason,
        "hint": best.hint or None,
        "trials": [
            {
                "settings": one.settings.text,
                "evidence": one.evidence,
                "reason": one.reason or None,
                "checks": [
                    {"check": finding.check, "result": finding.outcome, "seen": finding.seen}
                    for finding in one.findings
                ],
            }
            for one in report.trials
        ],
        "configuration": advice.toml,
        "rights": rights,
    }


def _exit_code(report: ProbeReport, advice: Advice) -> ExitCode:
    if told_faults(report):
        return ExitCode.FAILED
    return ExitCode.OK if advice.trial.is_proved else ExitCode.NO


def told_faults(report: ProbeReport) -> bool:
    """Print whether the time was up or something could not be cleaned up; return whether one of them is so."""
    from fanout.cli.output.terminal import print_error
    from fanout.errors import FanoutError

    faults = []
    if not report.complete:
        faults.append(FanoutError("the time was up before all checks were made", hint="Give a longer --timeout"))
    if report.left_behind:
        hint = "Clear them at the primary; their topics are unique to this run"
        faults.append(FanoutError(f"not cleaned up: {report.left_behind}", hint=hint))
    for fault in faults:
        print_error(fault)
    return bool(faults)
