"""`fanout check`: print what a configuration would run, or all of its faults."""

from __future__ import annotations

import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.arguments.node_options import MembersOption
from fanout.cli.output.acl import AclSyntax, AclUnwritable, acl_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from fanout.config import LinkConfig, NodeConfig
    from fanout.errors import ConfigFault

__all__ = ["CheckedRole", "register"]


class CheckedRole(enum.StrEnum):
    """The roles a node can have."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    TAP = "tap"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog="Exit codes: 0 no faults, 2 faults, or a line of --exposed that does not hold.")(check)


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration (TOML); - reads standard input.")],
    role: Annotated[
        CheckedRole | None, typer.Option(help="Also check what a node of this role needs and must not have.")
    ] = None,
    acl: Annotated[
        bool, typer.Option("--acl", help="Print only the access rules that the links need at their primaries.")
    ] = False,
    syntax: Annotated[
        AclSyntax, typer.Option("--for", help="With --acl: the broker in whose syntax they are written.")
    ] = AclSyntax.MOSQUITTO,
    *,
    members: MembersOption = None,
    files: Annotated[
        bool | None,
        typer.Option(
            help="Open the certificates, keys and password files that it names, from this directory.",
            show_default="--files, but for standard input",
        ),
    ] = None,
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Print only the checklist for a node that strangers can reach.")
    ] = False,
) -> None:
    """Check a configuration and print what it would run.

    Nothing is started. With --acl, print what the user of each link has to be allowed at its primary.

    All faults are printed at once on standard error, each with its key and what to do.
    """
    from fanout.cli.arguments.named_files import find_file_faults, find_file_warnings
    from fanout.cli.output.terminal import facts, print_warnings, show
    from fanout.config import MemberNumber, load_config
    from fanout.config.loading import CONFIG_BYTES_MAX, load_file, parse_bytes
    from fanout.errors import ConfigError
    from fanout.node.config_warnings import find_config_warnings

    if members is not None and role not in (None, CheckedRole.SECONDARY):
        raise typer.BadParameter(f"members of a pool are secondaries, and --role is {role}", param_hint="--members")
    is_piped = str(config) == "-"
    if is_piped and members is not None:
        raise typer.BadParameter("the members of a pool share a file", param_hint="--members")
    name, files = "standard input" if is_piped else str(config), not is_piped if files is None else files
    if is_piped:
        data = sys.stdin.buffer.read(CONFIG_BYTES_MAX + 1)
        node_config = parse_bytes(data, path=name, role=role.value if role else None)
    else:
        node_config = load_config(config, role=role.value if role else None)
    numbers = [MemberNumber(number, members) for number in range(1, members + 1)] if members is not None else []
    nodes = [load_file(config, role="secondary", member=one).config for one in numbers] or [node_config]
    if acl:
        sys.stdout.write("\n".join(_acl(config, node, syntax) for node in nodes))
        return
    if files and (faults := find_file_faults(node_config)):
        raise ConfigError(name, tuple(faults))
    of_files = find_file_warnings(node_config, now_s=time.time()) if files else []
    if exposed:
        _print_exposure(node_config, of_files if files else None)
        return
    print_warnings(name, [*find_config_warnings(node_config), *of_files])
    show(f"{name} has no faults{f' for a {role}' if role else ''}", "", facts(*_node_facts(node_config)))
    if node_config.links:
        show("", _links_table(node_config.links), "", _selectors_table(node_config.links))


def _print_exposure(config: NodeConfig, of_files: list[ConfigFault] | None) -> None:
    """Print the checklist for an exposed node, and end with 2 unless all of it holds."""
    from fanout.cli.arguments.exposure import exposure_lines
    from fanout.cli.output.terminal import show

    lines = exposure_lines(config, of_files=of_files)
    for line in lines:
        show(f"{'open' if line.faults else 'ok':<5}{line.promise}")
        for fault in line.faults:
            show(f"     {fault.key}: {fault.problem}", f"       {fault.hint}")
    if any(line.faults for line in lines):
        raise typer.Exit(2)


def _acl(path: Path, config: NodeConfig, syntax: AclSyntax) -> str:
    """Return the access rules for all links, a blank line between.

    Raises:
        ConfigError: There is no link, or the syntax cannot carry a user name or Topic Filter.
    """
    from fanout.errors import ConfigError, ConfigFault

    if not config.links:
        raise ConfigError(str(path), (ConfigFault("link", "there is none", "A node without links needs no rights."),))
    blocks, faults = list[str](), list[ConfigFault]()
    for index, link in enumerate(config.links):
        try:
            blocks.append(acl_text(link, node_id=config.node.id, syntax=syntax, in_pool=config.pool is not None))
        except AclUnwritable as error:
            hint = f"Use another name or filter, or write the rule by hand: --for {AclSyntax.LIST} lists them."
            faults.append(ConfigFault(f"link[{index}]", str(error), hint))
    if faults:
        raise ConfigError(str(path), tuple(faults))
    return "\n".join(blocks)


def _node_facts(config: NodeConfig) -> Iterator[tuple[str, str]]:
    yield "node", config.node.id
    yield "data", str(config.node.data_directory)
    yield (
        "serves",
        ", ".join(str(listener.address) for listener in config.server.listeners)
        if config.server
        else "no MQTT clients",
    )
    yield "http", str(config.http.listen) if config.http else "off"
    if config.http is not None and config.http.agent_listen is not None:
        yield "agent check", config.http.agent_listen.authority
    if config.pool is not None:
        yield "pool", config.pool.listen.authority
    yield "log", str(config.log.directory) if config.log else "off"
    if config.log is not None and config.log.ship is not None:
        yield "shipped to", config.log.ship.to


def _links_table(links: tuple[LinkConfig, ...]) -> Table:
    from fanout.cli.output.terminal import columns, lines

    table = columns("link", "primary", "mqtt", "client id", "user")
    for link in links:
        addresses = lines(*map(str, link.primaries))
        version = "5" if link.version == 5 else "3.1.1"
        table.add_row(link.name, addresses, version, link.client_id, link.username or "-")
    return table


def _selectors_table(links: tuple[LinkConfig, ...]) -> Table:
    from fanout.cli.output.terminal import columns, lines

    table = columns("link", "selector", "except", "qos", "prefix", "writes", right=("qos",))
    for link in links:
        for one in link.selectors:
            excludes = lines(*(one.exclude or ("-",)))
            table.add_row(link.name, one.filter, excludes, str(one.qos), one.prefix or "-", one.writes)
    return table
