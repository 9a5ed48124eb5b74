"""Rules between the keys of a configuration: one pure function finds every fault at once.

Each value is assumed to be legal by itself (`fanout.config.values`). No file and no environment is read.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Literal, TypeAlias

from fanout.config.access import find_access_faults
from fanout.config.address import Address
from fanout.config.pool import find_pool_faults
from fanout.config.settings import LinkConfig, NodeConfig
from fanout.errors import ConfigFault
from fanout.selection import (
    LinkSelectors,
    Namespace,
    Overlap,
    Selector,
    SelectorPlace,
    common_filter,
    find_overlaps,
    intersect,
    sample_topic,
)

__all__ = ["OVERLAPS_SHOWN_MAX", "Role", "find_faults"]

Role: TypeAlias = Literal["primary", "secondary", "tap"]
"""Role of a node."""

OVERLAPS_SHOWN_MAX = 50
"""Overlaps that are reported one by one, at most; n equal selectors have n * (n - 1) / 2."""

_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_faults(config: NodeConfig, *, role: Role | None) -> list[ConfigFault]:
    """Return all faults between the keys of `config`.

    Args:
        config: A configuration whose Client Identifiers are filled in.
        role: Role of the node; None accepts what any role accepts.
    """
    return [
        *_role_faults(config, role),
        *_listener_faults(config),
        *_listener_key_faults(config),
        *_http_faults(config),
        *_server_faults(config),
        *_retained_faults(config),
        *_session_faults(config),
        *find_access_faults(config.access),
        *find_pool_faults(
            config.pool,
            has_links=bool(config.links),
            has_server=config.server is not None,
        ),
        *_link_faults(config),
        *_selector_faults(config),
        *_overlap_faults(config),
    ]


def _role_faults(config: NodeConfig, role: Role | None) -> Iterator[ConfigFault]:
    links, server, log = bool(config.links), config.server is not None, config.log is not None
    if role is None and not links and not server:
        yield ConfigFault(
            "",
            "the node would do nothing: it has neither [server] nor [[link]]",
            "Add [server] (primary), [server] and [[link]] (secondary), or [[link]] and [log] (tap).",
        )
    if role is None and links and not server and not log:
        yield ConfigFault(
            "",
            "the links lead nowhere: there is neither [server] nor [log]",
            "Add [server], or [log] for a tap.",
        )
    if role in ("secondary", "tap") and not links:
        yield ConfigFault(
            "link",
            f"a {role} replicates a primary, and there is no [[link]]",
            "Add [[link]] with name and primary, and [[link.selector]] with filter.",
        )
    if role == "primary" and links:
        yield ConfigFault(
            "link",
            "a primary has no links",
            'Remove every [[link]], or start the node with "fanout secondary".',
        )
    if role in ("primary", "secondary") and not server:
        yield ConfigFault(
            "server",
            f"a {role} serves clients, and there is no [server]",
            "Add a line [server]; its defaults will do.",
        )
    if role == "tap" and server:
        yield ConfigFault(
            "server", "a tap serves no clients", 'Remove [server], or start the node with "fanout secondary".'
        )
    if role == "tap" and not log:
        yield ConfigFault(
            "log",
            "a tap exists to write a log, and there is no [log]",
            "Add [log] with directory, for this node only.",
        )


def _listener_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    listeners: list[tuple[str, Address]] = []
    if config.server is not None:
        listeners += [(f"server.listen[{index}]", address) for index, address in enumerate(config.server.listen)]
        listeners += [
            (f"server.listener[{index}].address", listener.address)
            for index, listener in enumerate(config.server.listener_tables)
        ]
    for index, link in enumerate(config.links):
        for address in link.primaries:
            if any(_reaches(address, listener) for _, listener in listeners):
                yield ConfigFault(
                    f"link[{index}].primary",
                    f"{address} is this node's own listener",
                    "Write the address of another node: a node cannot replicate itself.",
                )
    if config.http is not None:
        listeners.append(("http.listen", config.http.listen))
        if config.http.agent_listen is not None:
            listeners.append(("http.agent_listen", config.http.agent_listen))
    if config.pool is not None:
        listeners.append(("pool.listen", config.pool.listen))
    for (first_key, first), (key, address) in itertools.combinations(listeners, 2):
        if _clash(first, address):
            yield ConfigFault(
                key,
                f"{address.authority} cannot be opened beside {first_key}, {first.authority}",
                f"Choose another {'path' if address.scheme == 'unix' else 'port'} for one of them.",
            )


def _clash(a: Address, b: Address) -> bool:
    """Return True if two listeners cannot have these addresses at the same time."""
    if "unix" in (a.scheme, b.scheme):
        return a.scheme == b.scheme and a.host == b.host
    if a.port != b.port or a.port == 0:
        return False
    if _is_same_host(a.host, b.host):
        return True
    return not _EVERY_ADDRESS.isdisjoint((a.host, b.host)) and (":" in a.host) == (":" in b.host)


def _reaches(target: Address, listener: Address) -> bool:
    """Return True if `target`, seen from this machine, certainly reaches `listener`."""
    if target.port != listener.port:
        return False
    return _is_same_host(target.host, listener.host) or (
        listener.host in _EVERY_ADDRESS and target.host in _LOOPBACK | _EVERY_ADDRESS
    )


def _is_same_host(a: str, b: str) -> bool:
    return a == b or ("localhost" in (a, b) and {a, b} <= _LOOPBACK)


def _retained_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    """Refuse options that need every topic in memory, or all at once, together with `disc_only`."""
    if config.retained.storage != "disc_only":
        return
    for index, link in enumerate(config.links):
        if link.count_url is not None:
            yield ConfigFault(
                f"link[{index}].count_url",
                'the list of all topics would be in memory, and retained.storage is "disc_only"',
                'Remove the line, or use storage = "disc".',
            )


def _session_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    """Refuse what a session in a file could not go on with."""
    if config.sessions.storage == "ram":
        return
    if config.server is None:
        yield ConfigFault(
            "sessions.storage",
            "a node that serves no clients has no sessions",
            "Remove [sessions], or add [server].",
        )
        return
    if config.retained.storage == "ram":
        yield ConfigFault(
            "sessions.storage",
            'it is "disc", and retained.storage is "ram": links would begin anew at a restart: sessions miss messages'
            " or get them twice",
            'Add storage = "disc" to [retained].',
        )


def _server_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    server = config.server
    if server is not None and server.write_buffer_low_bytes > server.write_buffer_high_bytes:
        yield ConfigFault(
            "server.write_buffer_low_bytes",
            f"{server.write_buffer_low_bytes} is more than the high mark, {server.write_buffer_high_bytes}",
            "Choose a value that is at most write_buffer_high_bytes.",
        )


def _http_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    http = config.http
    if http is None or (http.certificate_file is None) is (http.key_file is None):
        return
    name = "certificate_file" if http.certificate_file is None else "key_file"
    hint = f"Add {name}, the path of a PEM file; one file may hold both."
    yield ConfigFault(f"http.{name}", "is missing, and TLS needs it", hint)


def _listener_key_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    server = config.server
    if server is None:
        return
    if not server.listeners:
        yield ConfigFault("server.listen", "the list is empty", "Write at least one address.")
    for index, listener in enumerate(server.listener_tables):
        key = f"server.listener[{index}]"
        scheme = listener.address.scheme
        files = {
            "certificate_file": listener.certificate_file,
            "key_file": listener.key_file,
            "client_ca_file": listener.client_ca_file,
        }
        for name, path in files.items():
            if path is None and listener.address.has_tls and name != "client_ca_file":
                yield ConfigFault(
                    f"{key}.{name}", f"is missing, and {scheme}:// needs it", f"Add {name}, the path of a PEM file."
                )
            if path is not None and not listener.address.has_tls:
                yield ConfigFault(
                    f"{key}.{name}",
                    f"it is for TLS, and {listener.address} has none",
                    f"Write {'wss' if listener.address.has_websocket else 'mqtts'}:// in address, or remove the line.",
                )
        if listener.require_client_certificate and listener.client_ca_file is None:
            yield ConfigFault(
                f"{key}.require_client_certificate",
                "nothing says which certificates are valid: client_ca_file is missing",
                "Add client_ca_file, or remove the line.",
            )
        if listener.share_port:
            yield from _shared_port_faults(config, f"{key}.share_port", listener.address)
        if listener.proxy_protocol_from and scheme == "unix":
            yield ConfigFault(
                f"{key}.proxy_protocol_from",
                "clients of a Unix socket have no address that could be trusted",
                "Use mqtt://127.0.0.1 with a port, or remove the line.",
            )


def _shared_port_faults(config: NodeConfig, key: str, address: Address) -> Iterator[ConfigFault]:
    if address.scheme == "unix" or address.port == 0:
        yield ConfigFault(
            key,
            f"{address} is no port that several processes can share",
            "Write a TCP port that is not 0 in address, or remove the line.",
        )
    if config.pool is None or not config.pool.peers:
        yield ConfigFault(
            key,
            "only members of one pool share a port, and pool.peers names no members",
            "Add [pool] with peers, or start the members with fanout secondary --members.",
        )
    if sys.platform != "linux":
        yield ConfigFault(
            key, f"processes can share a port on Linux only, and this is {sys.platform}", "Remove the line."
        )


def _link_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    for index, link in enumerate(config.links):
        key = f"link[{index}]"
        if link.max_age_s and config.pool is not None:
            yield ConfigFault(
                f"{key}.max_age_s",
                "the members of a pool compare what they hold at each other's heartbeats, which overtake values then",
                "Remove the line, or [pool].",
            )
        for other_index, other in enumerate(config.links[:index]):
            if link.name == other.name:
                yield ConfigFault(
                    f"{key}.name",
                    f'"{link.name}" is also the name of link[{other_index}]',
                    "Choose another name.",
                )
                break
            if link.client_id == other.client_id and not _addresses(link).isdisjoint(_addresses(other)):
                yield ConfigFault(
                    f"{key}.client_id",
                    f'"{link.client_id}" is also the client_id of link[{other_index}], and their primary '
                    "would close each connection when the other opens",
                    "Choose another client_id, or remove the line.",
                )
                break
        if link.password_file is not None and link.password_env is not None:
            yield ConfigFault(
                f"{key}.password_env",
                "password_file is given too",
                "Keep password_file or password_env, not both.",
            )
        has_password = link.password_file is not None or link.password_env is not None
        if link.version == 4 and has_password and link.username is None:  # [MQTT-3.1.2-22] of MQTT 3.1.1
            yield ConfigFault(
                f"{key}.username",
                "is missing, and MQTT 3.1.1 (version = 4) allows no password without a User Name",
                "Add username.",
            )
        yield from _link_tls_faults(key, link)
        if link.audit_username is not None and link.audit_username == link.username:
            yield ConfigFault(
                f"{key}.audit_username",
                "it is the username of the link, which sees no more than the link",
                "Give another user, which may read all that the selectors match, or remove the line.",
            )
        if link.audit_password_file is not None and link.audit_username is None:
            yield ConfigFault(
                f"{key}.audit_password_file",
                "it is for audit_username, which is missing",
                "Add audit_username, or remove the line.",
            )
        if link.count_key_file is not None and link.count_url is None:
            yield ConfigFault(
                f"{key}.count_key_file",
                "it is for count_url, which is missing",
                "Add count_url, or remove the line.",
            )
        if link.version == 4 and link.min_evidence == "manifest":
            yield ConfigFault(
                f"{key}.min_evidence",
                '"manifest" needs MQTT 5, and with version = 4 the node would never be ready',
                "Remove version, or write a weaker evidence.",
            )
        if link.retry_min_s > link.retry_max_s:
            yield ConfigFault(
                f"{key}.retry_min_s",
                f"{link.retry_min_s:g} is more than retry_max_s, {link.retry_max_s:g}",
                "Choose a first pause that is at most the longest.",
            )
        if link.announce_missing and link.selectors and not any(each.holds_all_retained for each in link.selectors):
            yield ConfigFault(
                f"{key}.announce_missing",
                "every selector keeps retained values out (live_only, content or max_payload), so a topic that is"
                " not held may still be at the primary, and nothing would be announced",
                "Remove the line, or those keys from a selector.",
            )
        if not link.selectors:
            yield ConfigFault(
                f"{key}.selector",
                f'the link "{link.name}" has no selector',
                'Add [[link.selector]] below it, with a filter such as "plant/#".',
            )


def _link_tls_faults(key: str, link: LinkConfig) -> Iterator[ConfigFault]:
    given = {
        "ca_file": link.ca_file is not None,
        "server_certificate_sha256": bool(link.server_certificate_sha256),
        "client_certificate_file": link.client_certificate_file is not None,
        "client_key_file": link.client_key_file is not None,
        "tls_insecure": link.tls_insecure,
    }
    if not any(address.has_tls for address in link.primaries):
        for name in (name for name, is_given in given.items() if is_given):
            yield ConfigFault(
                f"{key}.{name}",
                f"it is for TLS, and {link.primaries[0]} has none",
                f"Write {'wss' if link.primaries[0].has_websocket else 'mqtts'}:// in primary, or remove the line.",
            )
        return
    verifying = [name for name in ("ca_file", "server_certificate_sha256", "tls_insecure") if given[name]]
    for name in verifying[1:]:
        yield ConfigFault(
            f"{key}.{name}",
            f"{verifying[0]} is given too, and each says by itself which certificate of the primary is trusted",
            f"Keep {verifying[0]} or {name}, not both.",
        )
    for name, other in (
        ("client_key_file", "client_certificate_file"),
        ("client_certificate_file", "client_key_file"),
    ):
        if given[other] and not given[name]:
            yield ConfigFault(
                f"{key}.{name}",
                f"is missing, and {other} needs it",
                f"Add {name}, the path of a PEM file; one file may hold both.",
            )


def _addresses(link: LinkConfig) -> frozenset[str]:
    return frozenset(str(address) for address in link.primaries)


def _selector_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    for link_index, link in enumerate(config.links):
        for selector_index, selector in enumerate(link.selectors):
            key = f"{_key(SelectorPlace(link_index, selector_index))}.exclude"
            for index, exclude in enumerate(selector.exclude):
                if intersect(selector.filter, exclude) is None:
                    hint = "Correct it, or remove it."
                    if exclude.startswith("$") and selector.filter.startswith(("+", "#")):
                        hint = 'Remove it: a leading wildcard matches no topic that begins with "$".'
                    yield ConfigFault(
                        f"{key}[{index}]",
                        f'"{exclude}" excludes nothing: no topic of "{selector.filter}" matches it',
                        hint,
                    )
            if selector.retained_only and selector.live_only:
                yield ConfigFault(
                    f"{_key(SelectorPlace(link_index, selector_index))}.live_only",
                    "retained_only is true too, and nothing would be left",
                    "Keep one of them, or neither.",
                )
            if selector.live_only and selector.min_topics:
                yield ConfigFault(
                    f"{_key(SelectorPlace(link_index, selector_index))}.min_topics",
                    "live_only is true, so no retained value is held, and the node would never be ready",
                    "Remove one of them.",
                )
            control = f"{link.control_topic}/#"
            if selector.prefix and common_filter(selector.local_filter, control) is not None:
                yield ConfigFault(
                    f"{_key(SelectorPlace(link_index, selector_index))}.prefix",
                    f'topics of the primary would be "{control}" here, where nodes below publish heartbeats',
                    "Give it another prefix.",
                )
            if sample_topic(selector) is None:
                yield ConfigFault(
                    key,
                    f'nothing of "{selector.filter}" is left after these excludes',
                    "Narrow the excludes, or remove the selector.",
                )


def _overlap_faults(config: NodeConfig) -> Iterator[ConfigFault]:
    overlaps = find_overlaps([LinkSelectors(_addresses(link), link.selectors) for link in config.links])
    for overlap in overlaps[:OVERLAPS_SHOWN_MAX]:
        yield _overlap_fault(config, overlap)
    if len(overlaps) > OVERLAPS_SHOWN_MAX:
        yield ConfigFault(
            "link",
            f"{len(overlaps) - OVERLAPS_SHOWN_MAX} more pairs of selectors overlap",
            "Correct the first ones, then check again.",
        )


def _overlap_fault(config: NodeConfig, overlap: Overlap) -> ConfigFault:
    first, second = (_selector(config, place) for place in (overlap.first, overlap.second))
    first_key, key = _key(overlap.first), _key(overlap.second)
    link = config.links[overlap.first.link].name
    other = f'{first_key}.filter = {_described(first)} (link "{link}")'
    if overlap.namespace is Namespace.LOCAL:
        return ConfigFault(
            f"{key}.filter",
            f'{_described(second)} overlaps {other}: both would serve the local topic "{overlap.witness}"',
            f'Give one of them another prefix, such as "{link}/", or narrow one of the filters.',
        )
    common = common_filter(first.filter, second.filter)
    wider = [place for place, one in ((first_key, first), (key, second)) if one.filter != common]
    hint = "Remove one of them, or narrow its filter."
    if wider:
        hint = f'Add "{common}" to the exclude of {" or of ".join(wider)}, or narrow one of the filters.'
    return ConfigFault(
        f"{key}.filter",
        f'{_described(second)} overlaps {other}: both would replicate the topic "{overlap.witness}"',
        hint,
    )


def _selector(config: NodeConfig, place: SelectorPlace) -> Selector:
    return config.links[place.link].selectors[place.selector]


def _key(place: SelectorPlace) -> str:
    return f"link[{place.link}].selector[{place.selector}]"


def _described(selector: Selector) -> str:
    return f'"{selector.filter}"' + (f' with the prefix "{selector.prefix}"' if selector.prefix else "")
