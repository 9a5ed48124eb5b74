"""`fanout probe`: test a primary from outside, and print the configuration of a link to it."""

from __future__ import annotations

import enum
import importlib.util
import re
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.output.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.table import Table

    from fanout.config import LinkConfig
    from fanout.errors import ConfigError, TlsFailed
    from fanout.link.transport.tls import LinkTls
    from fanout.probe.advice import Advice
    from fanout.probe.client import Target
    from fanout.probe.results import ProbeReport, VersionReport

__all__ = ["ProbedVersion", "register"]

_PREFIX = "fanout/probe"
_SET_SIZE = 5_000
_TIMEOUT_S = 180.0
_LINK = "probe"
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


class ProbedVersion(enum.StrEnum):
    """Protocol versions with which a primary is tested."""

    BOTH = "both"
    FIVE = "5"
    THREE = "3.1.1"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Exit codes: 0 a link can replicate from it with proof; 1 it cannot, or with two-pass only; 3"
        " unreachable; 4 the extra probe is missing; 5 refused, the time was up, or something could not be cleaned up."
    )(probe)


def probe(
    primary: Annotated[str, typer.Argument(metavar="URL", help="The primary's address, as a link has it.")],
    *,
    username: Annotated[str | None, typer.Option(metavar="USER", help="User Name; without it none is sent.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File whose content is the password.")
    ] = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that has the password.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates of its CAs (PEM); without it, the system's.")
    ] = None,
    server_certificate_sha256: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="SHA-256 of its certificate, in place of a CA.")
    ] = None,
    client_certificate_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate to show (PEM).")
    ] = None,
    client_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    tls_insecure: Annotated[bool, typer.Option("--tls-insecure", help="Do NOT verify its certificate.")] = False,
    mqtt: Annotated[ProbedVersion, typer.Option(help="The protocol versions to test.")] = ProbedVersion.BOTH,
    prefix: Annotated[
        str, typer.Option(metavar="TOPIC", help="Test below this topic, where the user may write and read.")
    ] = _PREFIX,
    read_filter: Annotated[
        str | None,
        typer.Option("--filter", metavar="FILTER", help="Also read the retained set of this Topic Filter as it is."),
    ] = None,
    set_size: Annotated[
        int, typer.Option(metavar="COUNT", min=10, max=100_000, help="Messages of the large retained set.")
    ] = _SET_SIZE,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long all checks may take together.")
    ] = _TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Test a broker from outside, and print the settings for a link.

    Every check says what was seen and what it means for a link. The probe publishes below a unique topic under
    --prefix, and clears what it retained there when it ends. The client is aiomqtt, not fanout's own.
    """
    from fanout.errors import ExtraMissing
    from fanout.installation import install_command

    if importlib.util.find_spec("aiomqtt") is None:
        raise ExtraMissing("fanout probe", install=install_command("probe"))
    import asyncio

    from fanout.cli.output.terminal import print_json, print_warnings
    from fanout.errors import ConfigFault
    from fanout.probe.advice import advise
    from fanout.probe.runner import probe as test_primary

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
    link = _checked_link(given, read_filter)
    address = link.primaries[0]
    tls = _tls(link)
    if tls_insecure:
        print_warnings(
            "the command line",
            [ConfigFault("--tls-insecure", "the certificate is not verified", "Give --ca-file, and leave it out.")],
        )
    with _progress() as on_check:
        report = asyncio.run(
            test_primary(
                _target(link, tls),
                address=str(address),
                versions={"both": (5, 4), "5": (5,), "3.1.1": (4,)}[mqtt],
                prefix=prefix,
                set_size=set_size,
                read_filter=read_filter,
                timeout_s=timeout,
                on_check=on_check,
                tls_failure=None if tls is None else lambda error: _in_options(tls.failure(error, address)),
            )
        )
    if prefix == _PREFIX:
        del given["control_topic"]  # the user is only known to have rights at the default
    del given["primary"]
    advice = advise(report, read_filter=read_filter, keys=given)
    rights = _rights(advice, report.server)
    if as_json:
        print_json(_document(report, advice, rights))
    else:
        _show(report, advice, rights)
    raise typer.Exit(_exit_code(report, advice))


def _checked_link(keys: Mapping[str, str | bool], read_filter: str | None) -> LinkConfig:
    """Return the options as a link, checked like its keys in a configuration.

    Raises:
        ConfigError: One of them is not legal.
    """
    from fanout.config.loading import parse_tables
    from fanout.errors import ConfigError

    link = {"name": _LINK, **keys, "selector": [{"filter": "#" if read_filter is None else read_filter}]}
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


def _tls(link: LinkConfig) -> LinkTls | None:
    from fanout.errors import TlsFailed
    from fanout.link.transport.tls import load_tls

    try:
        return load_tls(link, link.primaries[0])
    except TlsFailed as error:
        raise _in_options(error) from error


def _in_options(error: TlsFailed) -> TlsFailed:
    """Return an error with options in place of keys of a link."""
    from fanout.errors import TlsFailed

    return TlsFailed(address=error.address, problem=_as_options(error.problem), hint=_as_options(error.hint))


def _as_options(text: str) -> str:
    """Return a text about keys of the link as one about the options that they come from."""
    return re.sub(_KEYS, lambda key: _OPTIONS[key[1]], text)


def _target(link: LinkConfig, tls: LinkTls | None) -> Target:
    from fanout.config import read_password
    from fanout.errors import ConfigError
    from fanout.probe.client import Target

    try:
        password = read_password(link)
    except ConfigError as error:
        raise _of_options(error) from error
    address = link.primaries[0]
    return Target(
        address.host,
        address.port,
        link.username,
        None if password is None else password.decode(),
        tls=None if tls is None else tls.context,
        websocket_path=(address.path or "/") if address.has_websocket else None,
    )


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


def _rights(advice: Advice, server: str) -> str:
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
    from fanout.cli.output.terminal import facts, show

    show(facts(("primary", report.address), ("says it is", report.server or "-")))
    for version in report.versions:
        show("", f"MQTT {'5' if version.version == 5 else '3.1.1'}", "", _table(version))
    show("", "rights that the user of this link needs there", "", *rights.rstrip("\n").split("\n"))
    verdict = "yes" if advice.is_proved else "without proof" if advice.can_replicate else "no"
    show("", f"{verdict}: {advice.reason}", "")
    show(*advice.toml.rstrip("\n").split("\n"))


def _table(report: VersionReport) -> Table:
    from fanout.cli.output.terminal import columns, outcome_text

    table = columns("check", "result", "seen", "for a link")
    for finding in report.findings:
        result = finding.result
        table.add_row(finding.check, outcome_text(result.outcome.shown), result.seen, finding.meaning)
    return table


def _document(report: ProbeReport, advice: Advice, rights: str) -> dict[str, object]:
    return {
        "primary": report.address,
        "server": report.server or None,
        "complete": report.complete,
        "left_behind": report.left_behind or None,
        "can_replicate": advice.can_replicate,
        "evidence": advice.evidence,
        "reason": advice.reason,
        "writable_prefix": next((one.writable_prefix for one in report.versions if one.writable_prefix), None),
        "mqtt": {
            "5" if one.version == 5 else "3.1.1": [
                {
                    "check": finding.check,
                    "result": finding.result.outcome.shown,
                    "seen": finding.result.seen,
                    "meaning": finding.meaning,
                }
                for finding in one.findings
            ]
            for one in report.versions
        },
        "configuration": advice.toml,
        "rights": rights,
    }


def _exit_code(report: ProbeReport, advice: Advice) -> ExitCode:
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
    if faults:
        return ExitCode.FAILED
    return ExitCode.OK if advice.is_proved else ExitCode.NO
