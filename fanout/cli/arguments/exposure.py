"""Checklist for a node that strangers can reach, as `fanout check --exposed` and `docs/how-to/expose.md` have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fanout.access.client_ids import matches_pattern
from fanout.config import Address, ListenerConfig, NodeConfig
from fanout.errors import ConfigFault
from fanout.server.accept.peers import is_local

__all__ = ["ExposureLine", "exposure_lines"]

_OF_A_LINK: Final = "fanout-NODE-LINK"
"""A Client Identifier as links have it."""
_SHARE: Final = 10
"""Part of all connections that one address may have: a tenth."""


@dataclass(frozen=True, slots=True)
class ExposureLine:
    """One line of the checklist."""

    promise: str
    """The line, as the page has it."""
    faults: tuple[ConfigFault, ...]
    """Each place of the configuration that breaks it, with the remedy; empty when the line holds."""


def exposure_lines(config: NodeConfig, *, of_files: Iterable[ConfigFault] | None) -> tuple[ExposureLine, ...]:
    """Return the checklist for a configuration without faults.

    Args:
        config: The configuration.
        of_files: Warnings about the files that it names (`fanout.cli.arguments.named_files`); None to leave them out.
    """
    lines = (
        ExposureLine("Clients connect over TLS", tuple(_plain_listeners(config))),
        ExposureLine("Clients have users", tuple(_anonymous(config))),
        ExposureLine("Rules say what clients read and write", tuple(_without_rules(config))),
        ExposureLine("Client Identifiers of nodes are reserved", tuple(_unreserved(config))),
        ExposureLine("One address cannot take all connections", tuple(_one_address(config))),
        ExposureLine("The HTTP interface is for operators, over TLS", tuple(_open_http(config))),
        ExposureLine("The pool is for members, over TLS", tuple(_open_pool(config))),
        ExposureLine("Links verify their primaries, over TLS", tuple(_open_links(config))),
    )
    if of_files is None:
        return lines
    return (*lines, ExposureLine("Files with secrets and certificates are in order", tuple(of_files)))


def _reached(config: NodeConfig) -> Iterator[tuple[str, ListenerConfig]]:
    """Yield the listeners that other machines reach, each with its key."""
    server = config.server
    if server is None:
        return
    plain = len(server.listen)
    for index, listener in enumerate(server.listeners):
        key = f"server.listen[{index}]" if index < plain else f"server.listener[{index - plain}].address"
        if not is_local(listener.address):
            yield key, listener


def _plain_listeners(config: NodeConfig) -> Iterator[ConfigFault]:
    for key, listener in _reached(config):
        if not listener.address.has_tls:
            yield ConfigFault(
                key,
                f"{listener.address} is not encrypted",
                "Write [[server.listener]] with mqtts:// or wss://, certificate_file and key_file.",
            )


def _anonymous(config: NodeConfig) -> Iterator[ConfigFault]:
    if config.server is not None and config.access.anonymous != "never":
        yield ConfigFault(
            "access.anonymous",
            f'it is "{config.access.anonymous}": clients without a user may connect, through a proxy too',
            'Write anonymous = "never", and add access.password_file, client_ca_file of a listener or [access.http].',
        )


def _without_rules(config: NodeConfig) -> Iterator[ConfigFault]:
    hook = config.access.http
    decides = hook is not None and {"subscribe", "publish"} <= set(hook.actions)
    if config.server is not None and not config.access.rules and not decides:
        yield ConfigFault(
            "access.rule",
            "there is none: every client may read and write every topic",
            "Write [[access.rule]] for what each user needs; or ask [access.http] to subscribe and to publish.",
        )


def _unreserved(config: NodeConfig) -> Iterator[ConfigFault]:
    reserved = (one.client_id for one in config.access.reserved)
    if config.server is not None and not any(matches_pattern(pattern, _OF_A_LINK) for pattern in reserved):
        yield ConfigFault(
            "access.reserved",
            "there is none for links: any client may take the session of a node below",
            'Write [[access.reserved]] with client_id = "fanout-*" and the user of the links.',
        )


def _one_address(config: NodeConfig) -> Iterator[ConfigFault]:
    server = config.server
    if server is not None and server.connections_per_address_max > max(1, server.connections_max // _SHARE):
        yield ConfigFault(
            "server.connections_per_address_max",
            f"{server.connections_per_address_max:,} of {server.connections_max:,} connections may be of one address",
            f"Lower it to {max(1, server.connections_max // _SHARE):,}; clients behind one load balancer need "
            "proxy_protocol_from.",
        )


def _open_http(config: NodeConfig) -> Iterator[ConfigFault]:
    http = config.http
    if http is None or is_local(http.listen):
        return
    if http.token_file is None:
        yield ConfigFault(
            "http.token_file",
            f"{http.listen.authority} is reached by others, and operators have no token",
            "Bind http.listen to 127.0.0.1, or add token_file.",
        )
    if http.certificate_file is None:
        yield ConfigFault(
            "http.certificate_file",
            f"{http.listen.authority} is not encrypted",
            "Bind http.listen to 127.0.0.1, or add certificate_file and key_file.",
        )


def _open_pool(config: NodeConfig) -> Iterator[ConfigFault]:
    pool = config.pool
    if pool is not None and not is_local(pool.listen) and not pool.has_tls:
        yield ConfigFault(
            "pool.certificate_file",
            f"{pool.listen.authority} is not encrypted: its token can be read on the way",
            "Add certificate_file, key_file and client_ca_file; keep the port to a private network.",
        )


def _open_links(config: NodeConfig) -> Iterator[ConfigFault]:
    for index, link in enumerate(config.links):
        plain: Address | None = next((one for one in link.primaries if not one.has_tls and not is_local(one)), None)
        if plain is not None:
            yield ConfigFault(
                f"link[{index}].primary", f"{plain} is not encrypted", "Write mqtts:// or wss://, and ca_file."
            )
        if link.tls_insecure:
            yield ConfigFault(
                f"link[{index}].tls_insecure", "the primary is not verified", "Remove the line, and add ca_file."
            )
