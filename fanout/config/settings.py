"""What can be configured: one dataclass per section of the file, with every key, its default and its meaning.

The classes are plain frozen dataclasses, so that nothing outside this package meets Pydantic, which reads the
annotations when a file is loaded. A class that is built directly, as tests do, is not validated.
`configs/full.toml` shows every key. What makes a value legal is in `fanout.config.values`, rules between keys
are in `fanout.config.rules`.

A section that is absent is off: no `[server]`, no MQTT listener; no `[http]`, no HTTP; no `[log]`, no
replication log. Only `[access]`, which `fanout.access.settings` has, and `[retained]` are never off: their
defaults hold then. Relative paths are relative to the current directory of the process, not to the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

from fanout.access.settings import AccessConfig, ListUrl
from fanout.config.address import Address
from fanout.config.values import (
    GIB,
    KIB,
    MIB,
    ByteCount,
    ByteCountOrZero,
    CertificateDigests,
    ClientId,
    ControlTopic,
    Count,
    DaysOrZero,
    EnvironmentName,
    Exclude,
    Flag,
    HttpAddress,
    ListenAddresses,
    ListenerAddress,
    MessageCount,
    Name,
    NetworkAddress,
    Origin,
    PacketBytes,
    PathText,
    PayloadBytes,
    Percent,
    PositiveUint16,
    Prefix,
    PrimaryAddresses,
    Qos,
    Seconds,
    SecondsOrZero,
    SelectedFilter,
    ServerReference,
    SessionExpiry,
    StoreUri,
    Uint16,
    Uint32,
    UserName,
    WorkerCount,
    converted,
)
from fanout.selection import ContentKind, Selector, WritePolicy

__all__ = [
    "HttpConfig",
    "IdentityConfig",
    "LinkConfig",
    "ListenerConfig",
    "LogConfig",
    "LossPolicy",
    "MinEvidence",
    "NodeConfig",
    "QueueOverflow",
    "RetainPolicy",
    "RetainedConfig",
    "RetainedStorage",
    "RetainedSync",
    "SelectorSection",
    "ServerConfig",
    "ShipConfig",
    "TlsVersion",
]

MinEvidence: TypeAlias = Literal["manifest", "count", "marker", "barrier", "two-pass", "quiet"]
"""Kinds of evidence for a snapshot, strongest first (`docs/decisions/0003-snapshot-evidence.md`)."""

LossPolicy: TypeAlias = Literal["tear_down", "serve_stale"]
"""What becomes of the replica of a session that is lost.

tear_down:   it is removed at once.
serve_stale: it is served on, not ready, until the next snapshot is proved, or the grace is over.
"""

RetainPolicy: TypeAlias = Literal["bridge", "keep"]
"""How a link over MQTT 3.1.1 learns that a live update is retained; ordinary clients get it without RETAIN.

bridge: the link asks for the flag with the bridge bit of the protocol level, which Mosquitto and others know.
keep:   every live update is taken for a retained one.
"""

RetainedStorage: TypeAlias = Literal["ram", "disc", "disc_only"]
"""Where retained values are.

ram:       in memory; a node that starts has none.
disc:      in memory, and in a file from which a node that starts has them again.
disc_only: in such a file, of which a part is in memory.
"""

RetainedSync: TypeAlias = Literal["off", "interval", "always"]
"""When what was written to the file is forced to the disk; a process that ends in whatever way loses none of it.

off:      when the system does it.
interval: every `sync_interval_s`; a loss of power takes back what came since.
always:   before it is acknowledged.
"""

QueueOverflow: TypeAlias = Literal["disconnect", "drop_oldest"]
"""What becomes of a session for which more messages at QoS 1 and 2 wait than may.

disconnect:  it ends, so that its client knows that something is missing.
drop_oldest: it goes on without the oldest of what was not sent yet.
"""

TlsVersion: TypeAlias = Literal["1.2", "1.3"]
"""A version of TLS."""

_STRICT = ConfigDict(extra="forbid")
_HTTP_LISTEN = Address("http", "127.0.0.1", 8080)
_ACCESS = AccessConfig()
_LISTEN = (Address("mqtt", "127.0.0.1", 1884),)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityConfig:
    """`[node]`: who the node is."""

    __pydantic_config__ = _STRICT

    id: Name
    """Its identifier; no other node that talks to the same primary or stands in the same report has it."""
    data_directory: PathText = Path("var/lib")
    """Where the node keeps what it must find again after a restart."""
    drain_s: SecondsOrZero = 5.0
    """How long clients are still served once the node is told to go, and is not ready any more; 0 has none of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """`[[server.listener]]`: an MQTT listener that needs more than an address."""

    __pydantic_config__ = _STRICT

    address: ListenerAddress
    """Address to listen on."""
    certificate_file: PathText | None = None
    """PEM file with the server's certificate and those between it and the root; None without TLS."""
    key_file: PathText | None = None
    """PEM file with its private key; None without TLS."""
    client_ca_file: PathText | None = None
    """PEM file with the certificates of those who sign clients' certificates; None asks no client for one."""
    require_client_certificate: Flag = False
    """Whether a client without a valid certificate is refused."""
    proxy_protocol_from: tuple[NetworkAddress, ...] = ()
    """Addresses and networks of load balancers; if there are any, only they may connect, with a PROXY header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`[server]`: the MQTT listeners and what one client may use."""

    __pydantic_config__ = _STRICT

    listen: ListenAddresses = _LISTEN
    """Addresses to listen on, where nothing else is to be said."""
    workers: WorkerCount = 1
    """Processes that serve clients; with more than one they share the listeners, and another one holds the links."""
    connect_timeout_s: Seconds = 5.0
    """How long a new connection may take to send its whole CONNECT."""
    connections_max: Count = 10_000
    """Network Connections at a time, those before CONNECT included; more are closed at once."""
    connections_per_address_max: Count = 8_000
    """Of these, from one IPv4 address or one IPv6 network of 64 bits; Unix sockets have none."""
    connection_rate_max: Count = 1_000
    """New connections in one second, on average; more are refused (0x9F)."""
    connection_burst_max: Count = 10_000
    """New connections that may come at once, before the rate counts."""
    sessions_max: Count = 100_000
    """Sessions, those without a connection included; a client that would need one more is refused (0x97)."""
    subscriptions_max: Count = 1_000
    """Subscriptions of one session."""
    filter_bytes_max: ByteCount = 256 * KIB
    """Bytes of the Topic Filters of one session; a subscription that goes beyond them is refused (0x97)."""
    filter_levels_max: Count = 128
    """Levels of a Topic Filter that a client subscribes to; one with more is refused (0x97)."""
    server_reference: ServerReference | None = None
    """Where clients are sent when they are told to leave (Server Reference, with 0x9C); None names no server."""
    keep_alive_max_s: Uint16 = 0
    """Longest Keep Alive a client gets (Server Keep Alive in MQTT 5); 0 leaves it to the client."""
    session_expiry_max_s: SessionExpiry = 3_600
    """Longest life of a session without a connection; 0 ends every session with its connection."""
    qos_max: Qos = 2
    """Highest QoS granted to a subscription and accepted in a PUBLISH."""
    receive_maximum: PositiveUint16 = 1_000
    """QoS 1 and 2 messages that a client may send without waiting for their acknowledgement."""
    inflight_max: PositiveUint16 = 16_384
    """QoS 1 and 2 messages sent to a client without waiting; its own Receive Maximum may be lower."""
    packet_bytes_max: PacketBytes = MIB
    """Largest packet accepted from a client (Maximum Packet Size)."""
    topic_alias_max: Uint16 = 32
    """Topic Aliases that a client may use (Topic Alias Maximum), and is sent if it can; 0 allows none."""
    queue_messages_max: Count = 1_000_000
    """Messages that may wait for one session."""
    queue_bytes_max: ByteCount = 64 * MIB
    """Bytes of the messages that may wait for one session, and of those sent to it and not acknowledged."""
    queue_overflow: QueueOverflow = "disconnect"
    """What becomes of a session with more messages at QoS 1 and 2; at QoS 0 the oldest are dropped in any case."""
    write_buffer_high_bytes: ByteCount = MIB
    """Unsent bytes of one connection above which its messages wait in the queue."""
    write_buffer_low_bytes: ByteCount = 256 * KIB
    """Unsent bytes of one connection below which it gets messages again."""
    publisher_stamps: Flag = False
    """Whether stamps that clients put on what they publish here are read; else they are properties like any other."""
    sys_interval_s: SecondsOrZero = 10.0
    """Pause between new values of the `$SYS` topics; 0 has none of them."""
    websocket_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may use WebSocket, "*" for all; empty: those from the host that they connect to."""
    retained_topics_max: Count = 1_000_000
    """Retained values of this node's own topics, those that clients publish here (a primary)."""
    retained_bytes_max: ByteCount = GIB
    """Bytes of the topics, payloads and properties of these retained values."""
    listener_tables: Annotated[tuple[ListenerConfig, ...], Field(alias="listener")] = ()
    """Tables `[[server.listener]]`: further listeners."""

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """Every listener, those of `listen` first."""
        return (*(ListenerConfig(address=address) for address in self.listen), *self.listener_tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`[http]`: health, status, metrics."""

    __pydantic_config__ = _STRICT

    listen: HttpAddress = _HTTP_LISTEN
    """Address to listen on."""
    agent_listen: HttpAddress | None = None
    """Address at which HAProxy's agent check is answered; None answers none."""
    report_directory: PathText | None = None
    """Where `fanout report watch` keeps its last result, which `/v1/lag` then shows; None shows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig:
    """`[log.ship]`: where sealed files of the log are copied to."""

    __pydantic_config__ = _STRICT

    to: StoreUri
    """URI of a prefix in an object store, or of a directory that is mounted."""
    retry_max_s: Seconds = 60.0
    """Longest pause before a store that failed is tried again; the first one is a second, and it doubles."""
    behind_max_s: Seconds = 900.0
    """How long a sealed file may wait for the store before there is an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`[log]`: the replication log."""

    __pydantic_config__ = _STRICT

    directory: PathText = Path("var/replication-log")
    """Where the log is written; each node needs its own."""
    flush_interval_s: Seconds = 0.1
    """How long a row may wait in memory before it is written to the open segment."""
    fsync_interval_s: Seconds = 1.0
    """How long a written row may wait before it is forced to the disk."""
    segment_bytes_max: ByteCount = 64 * MIB
    """Size at which a segment is closed and turned into Parquet."""
    segment_age_max_s: Seconds = 60.0
    """Age at which a segment is closed and turned into Parquet."""
    queue_rows_max: Count = 1_000_000
    """Rows that may wait to be written; beyond it rows are counted as a gap, not kept."""
    keep_days: DaysOrZero = 0.0
    """How long Parquet files are kept; 0 keeps them for ever. What waits to be shipped stays in any case."""
    keep_bytes_max: ByteCountOrZero = 0
    """Bytes of Parquet files that are kept; 0 keeps any. What waits to be shipped stays in any case."""
    ship: ShipConfig | None = None
    """`[log.ship]`; None when absent: the files are copied nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedConfig:
    """`[retained]`: retained values, those of links and those of this node's own topics."""

    __pydantic_config__ = _STRICT

    storage: RetainedStorage = "ram"
    """Where they are; see `RetainedStorage`. The file is in `node.data_directory`."""
    sync: RetainedSync = "interval"
    """Used with a file only; see `RetainedSync`."""
    sync_interval_s: Seconds = 1.0
    """Used with a file and `interval` only: how long a written value may wait before it is forced to the disk."""
    cache_bytes: ByteCount = 256 * MIB
    """Used with `disc_only` only: how much of the file is in memory."""
    max_messages: MessageCount = 0
    """Retained values in each store: of each link, and of this node's own topics; more are delivered only, and counted;
    0: no limit but those of the stores."""
    max_payload: PayloadBytes = 0
    """Bytes of the largest payload that is retained; larger ones are delivered only, and counted; 0: no limit."""
    expiry_s: Uint32 = 0
    """When a retained value of this node's own topics expires if its publisher did not say; 0: never."""
    available: Flag = True
    """Whether clients may publish retained messages here (Retain Available); who does all the same is refused."""


_RETAINED = RetainedConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSection:
    """`[[link.selector]]` as the file has it; loading makes it a `fanout.selection.Selector`."""

    __pydantic_config__ = _STRICT

    filter: SelectedFilter
    """Topic Filter at the primary."""
    exclude: tuple[Exclude, ...] = ()
    """Topic Filters of what is not replicated."""
    qos: Qos = 1
    """Maximum QoS of the subscription at the primary."""
    prefix: Prefix = ""
    """Put in front of the topic locally; empty, or ending with "/"."""
    writes: WritePolicy = "reject"
    """What happens to a local PUBLISH inside the selector."""
    content: tuple[ContentKind, ...] = ()
    """Kinds of content that are replicated; empty: all."""
    retained_only: Flag = False
    """Whether only messages with RETAIN are replicated."""
    live_only: Flag = False
    """Whether no retained value is replicated, but only what is published from now on."""
    max_payload: PayloadBytes = 0
    """Bytes of the largest payload that is replicated; 0: no limit."""


def _selector(section: SelectorSection) -> Selector:
    return Selector(
        section.filter,
        section.exclude,
        section.qos,
        section.prefix,
        section.writes,
        section.content,
        section.retained_only,
        section.live_only,
        section.max_payload,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """`[[link]]`: a connection to a primary, and what is replicated through it."""

    __pydantic_config__ = _STRICT

    name: Name
    """Its name, unique in the node."""
    primaries: Annotated[PrimaryAddresses, Field(alias="primary")]
    """Key `primary`: an address, or a list of addresses of the same primary, tried in order; with TLS or without."""
    selectors: Annotated[
        tuple[Annotated[Selector, converted(SelectorSection, _selector)], ...], Field(alias="selector")
    ] = ()
    """Tables `[[link.selector]]`: what is replicated; at least one."""
    client_id: ClientId = ""
    """Client Identifier; empty in the file means `fanout-{node.id}-{link.name}`; not empty after loading."""
    username: UserName | None = None
    """User Name; None sends none."""
    password_file: PathText | None = None
    """File whose content is the password (`read_password`); None for none."""
    password_env: EnvironmentName | None = None
    """Environment variable whose value is the password; None for none."""
    ca_file: PathText | None = None
    """PEM file with the certificates of the primary's CAs; None trusts those that the system trusts."""
    server_certificate_sha256: CertificateDigests = ()
    """SHA-256 digests of the primary's certificate, any of which takes the place of a CA, host name and dates; an empty
    list verifies these."""
    client_certificate_file: PathText | None = None
    """PEM file with the certificate that the link shows, and those between it and the root; None shows none."""
    client_key_file: PathText | None = None
    """PEM file with its private key, not encrypted; None for none."""
    tls_min_version: TlsVersion = "1.2"
    """Oldest version of TLS that the link speaks."""
    tls_insecure: Flag = False
    """Whether nothing of the primary's certificate is verified: anybody on the way can read and change everything."""
    version: Literal[4, 5] = 5
    """Protocol version: 5 for MQTT 5, 4 for MQTT 3.1.1."""
    retain_policy: RetainPolicy = "bridge"
    """Used with version 4 only; see `RetainPolicy`."""
    keep_alive_s: PositiveUint16 = 30
    """Keep Alive."""
    session_expiry_s: SessionExpiry = 300
    """How long the primary keeps the session, and this node the replica, without a connection."""
    on_session_loss: LossPolicy = "tear_down"
    """What becomes of the replica when the session is lost; see `LossPolicy`."""
    grace_s: Seconds = 300.0
    """Used with `serve_stale` only: how long a replica without a session is served at most."""
    disconnect_clients: Flag = False
    """Whether clients that have subscribed to the link's topics are told to go (0x9C) before a tear-down."""
    receive_maximum: PositiveUint16 = 65_535
    """QoS 1 and 2 messages that the primary may send without waiting for their acknowledgement."""
    packet_bytes_max: PacketBytes = 16 * MIB
    """Largest packet accepted from the primary, which drops what is larger (Maximum Packet Size)."""
    connect_timeout_s: Seconds = 10.0
    """How long one address may take from the first packet to CONNACK."""
    retry_min_s: Seconds = 0.5
    """First pause before connecting again; it doubles, with jitter, up to `retry_max_s`."""
    retry_max_s: Seconds = 30.0
    """Longest pause before connecting again."""
    min_evidence: MinEvidence = "barrier"
    """Weakest evidence for a snapshot with which the node may be ready."""
    snapshot_quiet_s: Seconds = 5.0
    """How long a snapshot may bring no byte before it counts as truncated."""
    count_url: ListUrl | None = None
    """Where EMQX lists its retained messages, for the evidence `count`; None asks nobody."""
    count_key_file: PathText | None = None
    """File with `key:secret` for that; None sends none."""
    heartbeat_s: SecondsOrZero = 5.0
    """Pause between heartbeats through the primary; 0 sends none, and then lag is unknown."""
    audit_interval_s: SecondsOrZero = 3_600.0
    """Pause between audits while live, give or take a tenth; 0 makes only those that something calls for."""
    max_removed_percent: Percent = 20
    """Share of a selector's topics that an audit may remove unless somebody confirms it."""
    control_topic: ControlTopic = "fanout/control"
    """Topic at the primary below which the node publishes markers and heartbeats."""
    announce_missing: Flag = False
    """Whether a local SUBSCRIBE that fits a selector and matches nothing is announced at the primary."""
    stamp_updates: Flag = False
    """Whether live updates of a primary that is no fanout node get this node's stamps, for the nodes below it."""
    publisher_stamps: Flag = False
    """Whether stamps that publishers put on their messages are read; else they are properties like any other."""
    receive_buffer_bytes: ByteCount = 4 * MIB
    """Receive buffer asked from the system (SO_RCVBUF), which keeps a snapshot from being truncated."""
    topics_max: Count = 5_000_000
    """Retained values held for the link; more are delivered but not held, and counted."""
    bytes_max: ByteCount = 4 * GIB
    """Bytes of the topics, payloads and properties of these retained values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A whole file."""

    __pydantic_config__ = _STRICT

    node: IdentityConfig
    """`[node]`."""
    server: ServerConfig | None = None
    """`[server]`; None when absent: no MQTT listener."""
    access: AccessConfig = _ACCESS
    """`[access]`; its defaults when absent."""
    http: HttpConfig | None = None
    """`[http]`; None when absent: no HTTP listener."""
    log: LogConfig | None = None
    """`[log]`; None when absent: no replication log."""
    retained: RetainedConfig = _RETAINED
    """`[retained]`; its defaults when absent."""
    links: Annotated[tuple[LinkConfig, ...], Field(alias="link")] = ()
    """Tables `[[link]]`."""
