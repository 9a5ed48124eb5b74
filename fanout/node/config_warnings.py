"""Warnings about legal settings that an operator hardly meant, such as a listener that admits anybody.

`fanout check` and the start of a node print them. They are found from the configuration alone; no file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanout.config import AccessConfig, ListenerConfig, NodeConfig
from fanout.errors import ConfigFault
from fanout.server.accept.peers import is_local

__all__ = ["find_config_warnings"]


def find_config_warnings(config: NodeConfig) -> list[ConfigFault]:
    """Return the warnings of a configuration; a node starts in spite of them."""
    return [
        *_closed_listeners(config),
        *_silent_selectors(config),
        *_open_links(config),
        *_pool_warnings(config),
    ]


def _open_links(config: NodeConfig) -> Iterator[ConfigFault]:
    for index, link in enumerate(config.links):
        if link.tls_insecure:
            yield ConfigFault(
                f"link[{index}].tls_insecure",
                f'the link "{link.name}" does not verify its primary: anybody on the way can pretend to be it, read '
                "and change everything, and take the password",
                "Remove the line, and set ca_file, or server_certificate_sha256 to the fingerprint of its certificate.",
            )
        has_password = link.password_file is not None or link.password_env is not None
        plain = next((each for each in link.primaries if not each.has_tls and not is_local(each)), None)
        if plain is None:
            continue
        if has_password:
            problem = f"its password goes to {plain} unencrypted, and anybody on the way can read it"
        elif any(each.has_tls for each in link.primaries):
            problem = f"it falls back to {plain}, unencrypted, if somebody cuts it off from the others"
        else:
            continue
        yield ConfigFault(
            f"link[{index}].primary",
            f'the link "{link.name}": {problem}',
            f"Write {'wss' if plain.has_websocket else 'mqtts'}:// and the port of its listener with TLS.",
        )


def _pool_warnings(config: NodeConfig) -> Iterator[ConfigFault]:
    pool = config.pool
    if pool is None:
        return
    if not pool.peers and pool.dns is None:
        yield ConfigFault(
            "pool.peers",
            "no other member is known: the pool is this node alone",
            'Add peers = ["edge-2:9201"], with the addresses of the members, or dns = "edges:9201".',
        )
    if pool.token_file is not None and not pool.has_tls and not pool.is_local:
        yield ConfigFault(
            "pool.token_file",
            "members show each other the token unencrypted, and anybody on the way can read it",
            "Add certificate_file, key_file and client_ca_file, or keep the members in a network of their own.",
        )


def _silent_selectors(config: NodeConfig) -> Iterator[ConfigFault]:
    for link_index, link in enumerate(config.links):
        for index, selector in enumerate(link.selectors):
            if link.announce_missing and not selector.holds_all_retained:
                yield ConfigFault(
                    f"link[{link_index}].selector[{index}].filter",
                    f'missing topics of "{selector.filter}" are not announced: live_only, content or max_payload keep '
                    "retained values out, so a topic that is not held may still be at the primary",
                    "Do nothing if that is intended; else remove those keys.",
                )


def _closed_listeners(config: NodeConfig) -> Iterator[ConfigFault]:
    server, access = config.server, config.access
    if server is None:
        return
    plain = len(server.listen)
    for index, listener in enumerate(server.listeners):
        if _admits_anybody(listener, access):
            continue
        key = f"server.listen[{index}]" if index < plain else f"server.listener[{index - plain}].address"
        whom = "lets nobody in" if access.anonymous == "never" else "lets in only clients of this machine"
        yield ConfigFault(
            key,
            f"no client can connect to {listener.address}: there are no users, no certificates of clients and no "
            f'HTTP hook, and access.anonymous = "{access.anonymous}" {whom}',
            "Add access.password_file (fanout passwd makes it), client_ca_file of a listener with TLS, or "
            '[access.http] that is asked for "connect"; access.anonymous = "always" lets in everybody.',
        )


def _admits_anybody(listener: ListenerConfig, access: AccessConfig) -> bool:
    # Behind a load balancer the client's own address counts, and that is another machine's.
    own_machine = is_local(listener.address) and not listener.proxy_protocol_from
    return (
        access.anonymous == "always"
        or (access.anonymous == "loopback" and own_machine)
        or access.password_file is not None
        or (access.http is not None and "connect" in access.http.actions)
        or listener.client_ca_file is not None
    )
