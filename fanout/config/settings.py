"""Settings: one dataclass per section of the configuration file, with every key, its default and its meaning.

The classes are plain frozen dataclasses, so that only this package meets Pydantic, which reads the annotations when a
file is loaded. A class that is built directly, as tests do, is not validated. `configs/full.toml` shows every key.
`fanout.config.values` defines legal values, `fanout.config.rules` the rules between keys.

An absent section is off: no `[server]`, no MQTT listener; no `[http]`, no HTTP; no `[log]`, no replication log. Only
`[access]` (`fanout.config.access`) and `[retained]` are never off: their defaults hold then. Relative paths are
relative to the current directory of the process, not to the file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

from fanout.config.access import AccessConfig
from fanout.config.address import Address
from fanout.config.pool import PoolConfig
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
    HostName,
    HttpAddress,
    ListenAddresses,
    ListenerAddress,
    ListUrl,
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
    SampleCount,
    Seconds,
    SecondsOrZero,
    SelectedFilter,
    ServerReference,
    SessionExpiry,
    StoreUri,
    Uint16,
    Uint32,
    UserName,
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
    "RefusedPublish",
    "RetainPolicy",
    "RetainedConfig",
    "RetainedStorage",
    "RetainedSync",
    "SelectorSection",
    "ServerConfig",
    "SessionStorage",
    "SessionsConfig",
    "ShipConfig",
    "StallPolicy",
    "TlsVersion",
]

MinEvidence: TypeAlias = Literal["manifest", "count", "marker", "barrier", "two-pass", "quiet"]
"""Kinds of evidence for a snapshot, strongest first (`docs/decisions/0003-snapshot-evidence.md`)."""

DoubtPolicy: TypeAlias = Literal["not_ready", "serve"]
"""Readiness of a node while topics of a link are in doubt; their values are served in any case."""

StallPolicy: TypeAlias = Literal["not_ready", "serve_stale"]
"""Treatment of complete values that the primary does not confirm, since it is frozen or away:

- `not_ready`: clients go elsewhere;
- `serve_stale`: `/readyz?stale=ok` offers them, with their age, for `stall_grace_s`; the node is not ready either way.
"""
LossPolicy: TypeAlias = Literal["tear_down", "serve_stale"]
"""Treatment of the replica after its session was lost.

tear_down:   the replica is removed at once.
serve_stale: it is served, not ready, until the next snapshot is proved or the grace is over.
"""

RetainPolicy: TypeAlias = Literal["bridge", "keep"]
"""Way in which a link over MQTT 3.1.1 recognizes retained live updates, which ordinary clients get without RETAIN.

bridge: the link asks for the flag with the bridge bit of the protocol level, which Mosquitto and others know.
keep:   every live update is treated as retained.
"""

RetainedStorage: TypeAlias = Literal["ram", "disc", "disc_only"]
"""Place of retained values.

ram:       in memory; a node starts without any.
disc:      in memory, and in a file from which a node restores them at its start.
disc_only: in such a file, with a part of it in memory.
"""

RetainedSync: TypeAlias = Literal["off", "interval", "always"]
"""When written values are forced to the disk; the end of the process, in any way, loses none of them.

off:      when the system decides.
interval: every `sync_interval_s`; a power failure loses the values since.
always:   before they are acknowledged.
"""

SessionStorage: TypeAlias = Literal["ram", "disc"]
"""Place of durable sessions while the node does not run.

ram:  none; the end of the process ends them.
disc: the file of retained values, always up to date.
"""

QueueOverflow: TypeAlias = Literal["disconnect", "drop_oldest"]
"""Treatment of a session whose queue of QoS 1 and 2 messages is full.

disconnect:  the session ends, so its client knows that messages are missing.
drop_oldest: it goes on without the oldest unsent messages.
"""

RefusedPublish: TypeAlias = Literal["acknowledge", "close"]
"""Treatment of a client of MQTT 3.1.1 whose PUBLISH is refused, for which that version has no Reason Code.

acknowledge: the message is acknowledged and dropped; if it may be accepted later, the connection is closed.
close:       the connection is closed, and most clients send the message again with the next one.
"""

TlsVersion: TypeAlias = Literal["1.2", "1.3"]
"""A version of TLS."""

_STRICT = ConfigDict(extra="forbid")
_HTTP_LISTEN = Address("http", "127.0.0.1", 8080)
_ACCESS = AccessConfig()
_LISTEN = (Address("mqtt", "127.0.0.1", 1884),)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityConfig:
    """`[node]`: identity of the node."""

    __pydantic_config__ = _STRICT

    id: Name
    """Its identifier; unique among the nodes of a primary and of a report."""
    data_directory: PathText = Path("var/lib")
    """Directory of data that must survive a restart."""
    drain_s: SecondsOrZero = 5.0
    """Time for which a node that was told to stop serves clients without being ready; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """`[[server.listener]]`: an MQTT listener that needs more than an address."""

    __pydantic_config__ = _STRICT

    address: ListenerAddress
    """Address to listen on."""
    certificate_file: PathText | None = None
    """PEM file with the server's certificate and the intermediate ones; None without TLS."""
    key_file: PathText | None = None
    """PEM file with its private key; None without TLS."""
    client_ca_file: PathText | None = None
    """PEM file with the CAs of clients' certificates; None asks clients for no certificate."""
    require_client_certificate: Flag = False
    """True if a client without a valid certificate is refused."""
    proxy_protocol_from: tuple[NetworkAddress, ...] = ()
    """Addresses and networks of load balancers; if any, only they may connect, with a PROXY header."""
    share_port: Flag = False
    """True if other members of the pool on this machine listen at the same port (SO_REUSEPORT)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`[server]`: the MQTT listeners and the limits of clients."""

    __pydantic_config__ = _STRICT

    listen: ListenAddresses = _LISTEN
    """Addresses of listeners without other keys."""
    connect_timeout_s: Seconds = 5.0
    """Time for a new connection to send its whole CONNECT."""
    connections_max: Count = 10_000
    """Network Connections at a time, those before CONNECT included; more are closed at once."""
    connections_per_address_max: Count = 8_000
    """Of these, from one IPv4 address or one IPv6 network of 64 bits; Unix sockets have none."""
    connection_rate_max: Count = 1_000
    """New connections in one second, on average; more are refused (0x9F)."""
    connection_burst_max: Count = 10_000
    """New connections that may come at once, before the rate counts."""
    unauthenticated_bytes_max: ByteCount = 32 * MIB
    """Bytes held of clients that are not admitted yet; beyond them the connections with the most are ended."""
    unauthenticated_bytes_per_address_max: ByteCount = 8 * MIB
    """Of these, from one IPv4 address or one IPv6 network of 64 bits; Unix sockets have none."""
    sessions_max: Count = 100_000
    """Sessions, those without a connection included; a client that would need one more is refused (0x97)."""
    subscriptions_max: Count = 10_000
    """Subscriptions of one session."""
    filter_bytes_max: ByteCount = 256 * KIB
    """Bytes of the Topic Filters of one session; a subscription that goes beyond them is refused (0x97)."""
    filter_levels_max: Count = 128
    """Levels of a Topic Filter that a client subscribes to; one with more is refused (0x97)."""
    server_reference: ServerReference | None = None
    """Server Reference for clients that are disconnected (with 0x9C); None names no server."""
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
    user_properties_max: Count = 1_000
    """User Properties of one packet; a client that sends more is disconnected (0x97)."""
    topic_alias_max: Uint16 = 32
    """Topic Aliases that a client may use (Topic Alias Maximum), and is sent if it can; 0 allows none."""
    queue_messages_max: Count = 1_000_000
    """Messages that may wait for one session."""
    queue_bytes_max: ByteCount = 64 * MIB
    """Bytes of the messages that may wait for one session, and of those sent to it and not acknowledged."""
    queue_overflow: QueueOverflow = "disconnect"
    """Treatment of a session with more messages at QoS 1 and 2; at QoS 0 the oldest are dropped anyway."""
    write_buffer_high_bytes: ByteCount = MIB
    """Unsent bytes of one connection above which its messages wait in the queue."""
    write_buffer_low_bytes: ByteCount = 256 * KIB
    """Unsent bytes of one connection below which it gets messages again."""
    refused_publish: RefusedPublish = "acknowledge"
    """Treatment of a client of MQTT 3.1.1 whose PUBLISH at QoS 1 or 2 is refused."""
    publisher_stamps: Flag = False
    """True if stamps of publishing clients are read; else they are ordinary properties."""
    sys_interval_s: SecondsOrZero = 10.0
    """Pause between new values of the `$SYS` topics; 0 has none of them."""
    websocket_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may use WebSocket, "*" for all; empty: those from the host that they connect to."""
    retained_topics_max: Count = 1_000_000
    """Retained values of this node's own topics, which clients publish here (a primary)."""
    retained_bytes_max: ByteCount = GIB
    """Bytes of the topics, payloads and properties of these retained values."""
    listener_tables: Annotated[tuple[ListenerConfig, ...], Field(alias="listener")] = ()
    """Tables `[[server.listener]]`: further listeners."""

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """Every listener, those of `listen` first."""
        return (*(ListenerConfig(address=address) for address in self.listen), *self.listener_tables)

    @property
    def verifies_certificates(self) -> bool:
        """True if clients may have a user by a certificate."""
        return any(one.client_ca_file is not None for one in self.listeners)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`[http]`: health, status, metrics."""

    __pydantic_config__ = _STRICT

    listen: HttpAddress = _HTTP_LISTEN
    """Address to listen on."""
    agent_listen: HttpAddress | None = None
    """Address at which HAProxy's agent check is answered; None answers none."""
    token_file: PathText | None = None
    """File with the token of operators; None for none: everything but probes and metrics is for this machine only."""
    hosts: tuple[HostName, ...] = ()
    """Names of this node that the field Host may have without a token, beside addresses and localhost."""
    report: PathText | None = None
    """Page that `fanout report --html` writes, shown to operators; None shows none."""
    streams_max: Count = 256
    """Streams of values and events at a time, beside 256 other connections; further ones are refused (429)."""
    certificate_file: PathText | None = None
    """PEM file with the certificate of the interface and the intermediate ones; None without TLS."""
    key_file: PathText | None = None
    """PEM file with its private key; None without TLS."""

    @property
    def tls_listener(self) -> ListenerConfig | None:
        """Listener with the files for TLS; None without TLS."""
        if self.certificate_file is None:
            return None
        address = replace(self.listen, scheme="wss")  # HTTP over TLS, as far as the handshake goes
        return ListenerConfig(address=address, certificate_file=self.certificate_file, key_file=self.key_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig:
    """`[log.ship]`: the store to which sealed files of the log are copied."""

    __pydantic_config__ = _STRICT

    to: StoreUri
    """URI of a prefix in an object store, or of a directory that is mounted."""
    retry_max_s: Seconds = 60.0
    """Longest pause before a store that failed is tried again; the first one is a second, and it doubles."""
    behind_max_s: Seconds = 900.0
    """Time that a sealed file may wait for the store before an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`[log]`: the replication log."""

    __pydantic_config__ = _STRICT

    directory: PathText = Path("var/replication-log")
    """Directory of the log; each node needs its own."""
    flush_interval_s: Seconds = 0.1
    """Time that a row may wait in memory before it is written to the open segment."""
    fsync_interval_s: Seconds = 1.0
    """Time that a written row may wait before it is forced to the disk."""
    segment_bytes_max: ByteCount = 64 * MIB
    """Size at which a segment is closed and turned into Parquet."""
    segment_age_max_s: Seconds = 60.0
    """Age at which a segment is closed and turned into Parquet."""
    queue_rows_max: Count = 1_000_000
    """Rows that may wait to be written; beyond it rows are counted as a gap, not kept."""
    keep_days: DaysOrZero = 0.0
    """Age at which Parquet files are removed; 0 for never. Files that wait to be shipped stay anyway."""
    keep_bytes_max: ByteCountOrZero = 0
    """Bytes of Parquet files that are kept; 0 for no limit. Files that wait to be shipped stay anyway."""
    ship: ShipConfig | None = None
    """`[log.ship]`; None when absent: the files are copied nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedConfig:
    """`[retained]`: retained values, those of links and those of this node's own topics."""

    __pydantic_config__ = _STRICT

    storage: RetainedStorage = "ram"
    """Their place; see `RetainedStorage`. The file is in `node.data_directory`."""
    sync: RetainedSync = "interval"
    """Used with a file only; see `RetainedSync`."""
    sync_interval_s: Seconds = 1.0
    """Used with a file and `interval` only: time that a written value may wait before it is forced to the disk."""
    cache_bytes: ByteCount = 256 * MIB
    """Used with `disc_only` only: size of the part of the file in memory."""
    max_payload: PayloadBytes = 0
    """Bytes of the largest payload that is retained; larger ones are delivered only, and counted; 0: no limit."""
    expiry_s: Uint32 = 0
    """Expiry of retained values of this node's own topics without a Message Expiry Interval; 0: never."""
    available: Flag = True
    """True if clients may publish retained messages here (Retain Available); others are refused."""


_RETAINED = RetainedConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsConfig:
    """`[sessions]`: durable sessions of clients, those whose Session Expiry Interval is above 0."""

    __pydantic_config__ = _STRICT

    storage: SessionStorage = "ram"
    """Their place while the node does not run; see `SessionStorage`. Files are in `node.data_directory`."""


_SESSIONS = SessionsConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSection:
    """`[[link.selector]]` in the file; loading makes it a `fanout.selection.Selector`."""

    __pydantic_config__ = _STRICT

    filter: SelectedFilter
    """Topic Filter at the primary."""
    exclude: tuple[Exclude, ...] = ()
    """Topic Filters of topics that are not replicated."""
    qos: Qos = 1
    """Maximum QoS of the subscription at the primary."""
    prefix: Prefix = ""
    """Prefix of local topics; empty, or ending with "/"."""
    writes: WritePolicy = "reject"
    """Treatment of a local PUBLISH inside the selector."""
    content: tuple[ContentKind, ...] = ()
    """Kinds of content that are replicated; empty: all."""
    retained_only: Flag = False
    """True if only messages with RETAIN are replicated."""
    live_only: Flag = False
    """True if only live messages are replicated, and no retained values."""
    max_payload: PayloadBytes = 0
    """Bytes of the largest payload that is replicated; 0: no limit."""
    min_topics: MessageCount = 0
    """Retained values below which the link is not ready; 0: no bound, an empty set is only warned about."""


def _selector(section: SelectorSection) -> Selector:
    return Selector(**{key.name: getattr(section, key.name) for key in fields(section)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """`[[link]]`: a connection to a primary, with its selectors."""

    __pydantic_config__ = _STRICT

    name: Name
    """Its name, unique in the node."""
    primaries: Annotated[PrimaryAddresses, Field(alias="primary")]
    """Key `primary`: an address, or a list of addresses of the same primary, tried in order."""
    selectors: Annotated[
        tuple[Annotated[Selector, converted(SelectorSection, _selector)], ...], Field(alias="selector")
    ] = ()
    """Tables `[[link.selector]]`; at least one."""
    client_id: ClientId = ""
    """Client Identifier; empty in the file means `fanout-{node.id}-{link.name}`; not empty after loading."""
    username: UserName | None = None
    """User Name; None sends none."""
    password_file: PathText | None = None
    """File whose content is the password (`read_password`); None for none."""
    password_env: EnvironmentName | None = None
    """Environment variable whose value is the password; None for none."""
    audit_username: UserName | None = None
    """Another User Name, which may read all that the selectors match, to ask for missing topics with; None for none."""
    audit_password_file: PathText | None = None
    """File whose content is its password (`read_audit_password`); None for none."""
    ca_file: PathText | None = None
    """PEM file with the primary's CAs; None for those of the system."""
    server_certificate_sha256: CertificateDigests = ()
    """SHA-256 digests of the primary's certificate. A match replaces the check of CA, host name and dates; an empty
    list checks these."""
    client_certificate_file: PathText | None = None
    """PEM file with the link's certificate and the intermediate ones; None for none."""
    client_key_file: PathText | None = None
    """PEM file with its private key, not encrypted; None for none."""
    tls_min_version: TlsVersion = "1.2"
    """Oldest version of TLS that the link accepts."""
    tls_insecure: Flag = False
    """True if the primary's certificate is not verified: anybody on the way can read and change everything."""
    version: Literal[4, 5] = 5
    """Protocol version: 5 for MQTT 5, 4 for MQTT 3.1.1."""
    retain_policy: RetainPolicy = "bridge"
    """Used with version 4 only; see `RetainPolicy`."""
    keep_alive_s: PositiveUint16 = 30
    """Keep Alive."""
    session_expiry_s: SessionExpiry = 300
    """Time for which the primary keeps the session, and this node the replica, without a connection."""
    on_session_loss: LossPolicy = "tear_down"
    """Treatment of the replica after a session loss; see `LossPolicy`."""
    grace_s: Seconds = 300.0
    """Used with `on_session_loss = "serve_stale"` only: longest time that a replica without a session is served."""
    on_stall: StallPolicy = "not_ready"
    """Treatment of complete values while the primary does not answer; see `StallPolicy`."""
    stall_grace_s: Seconds = 300.0
    """Used with `on_stall = "serve_stale"` only: greatest age of values that are offered as stale."""
    disconnect_clients: Flag = False
    """True if clients with subscriptions to the link's topics are disconnected (0x9C) before a tear-down."""
    receive_maximum: PositiveUint16 = 65_535
    """QoS 1 and 2 messages that the primary may send without waiting for their acknowledgement."""
    packet_bytes_max: PacketBytes = 16 * MIB
    """Largest packet read from the primary; a larger one is skipped, and not held in memory meanwhile."""
    connect_timeout_s: Seconds = 10.0
    """Time for one address from the first packet to CONNACK."""
    retry_min_s: Seconds = 0.5
    """First pause before connecting again; it doubles, with jitter, up to `retry_max_s`."""
    retry_max_s: Seconds = 30.0
    """Longest pause before connecting again."""
    min_evidence: MinEvidence = "barrier"
    """Weakest evidence for a snapshot with which the node may be ready."""
    snapshot_quiet_s: Seconds = 5.0
    """Silence after which an unfinished snapshot counts as truncated."""
    count_url: ListUrl | None = None
    """URL of EMQX's list of retained messages, for the evidence `count`; None for none."""
    count_key_file: PathText | None = None
    """File with `key:secret` for that; None sends none."""
    heartbeat_s: SecondsOrZero = 5.0
    """Pause between heartbeats through the primary; 0 sends none, and then lag is unknown."""
    sample_topics: SampleCount = 16
    """Topics of each selector that are requested by name with each heartbeat; 0 requests none."""
    audit_interval_s: SecondsOrZero | None = None
    """Pause between audits while live, give or take a tenth; 0 makes only requested ones. None means 5 minutes, and a
    hundred times the duration of the newest audit where that is longer."""
    max_removed_percent: Percent = 20
    """Share of a selector's topics that may be removed without confirmation, with evidence that they are deleted."""
    on_doubt: DoubtPolicy = "not_ready"
    """Readiness while topics are unconfirmed; see `DoubtPolicy`."""
    on_joining: DoubtPolicy = "serve"
    """Readiness while a selector that a reload has added is not proved yet; its topics are served as they come."""
    control_topic: ControlTopic = "fanout/control"
    """Topic at the primary below which the node publishes markers and heartbeats."""
    announce_missing: Flag = False
    """True if a local SUBSCRIBE inside a selector that matches no topic is announced at the primary."""
    stamp_updates: Flag = False
    """True if live updates of a primary that is no fanout node get this node's stamps, for the nodes below it."""
    publisher_stamps: Flag = False
    """True if stamps of publishers are read; else they are ordinary properties."""
    max_age_s: SecondsOrZero = 0.0
    """Age of waiting values above which a `fanout` primary sends only the newest of each topic; 0 for no bound."""
    max_age_qos: Literal[0, 1] = 0
    """Used with `max_age_s` only: highest QoS at which values may be left out for newer ones."""
    receive_buffer_bytes: ByteCount = 4 * MIB
    """Receive buffer of the socket (SO_RCVBUF), which keeps a snapshot from being truncated."""
    topics_max: Count = 5_000_000
    """Retained values held for the link; more are counted and delivered, but not held."""
    bytes_max: ByteCount = 4 * GIB
    """Bytes of the topics, payloads and properties of these retained values."""

    def client_id_of(self, node_id: str) -> str:
        """Return the Client Identifier of the link of a node."""
        return self.client_id or f"fanout-{node_id}-{self.name}"

    @property
    def proves_absence(self) -> bool:
        """True if it can be asked about single topics whether they are deleted at the primary."""
        return self.count_url is not None or self.audit_username is not None


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
    pool: PoolConfig | None = None
    """`[pool]`; None when absent: the node knows of no other secondaries."""
    log: LogConfig | None = None
    """`[log]`; None when absent: no replication log."""
    retained: RetainedConfig = _RETAINED
    """`[retained]`; its defaults when absent."""
    sessions: SessionsConfig = _SESSIONS
    """`[sessions]`; its defaults when absent."""
    links: Annotated[tuple[LinkConfig, ...], Field(alias="link")] = ()
    """Tables `[[link]]`."""
