"""Configuration of a node: a TOML file becomes frozen dataclasses, or a `ConfigError` with every fault.

Pydantic validates single values (`values`, `settings`, `translation`), `rules` checks the rules between values, and
`loading` joins them. Only this package imports Pydantic for the configuration.
"""

from fanout.config.access import AccessConfig
from fanout.config.address import Address
from fanout.config.loading import load_config, parse_config
from fanout.config.members import MEMBERS_MAX, MemberNumber, make_pool_token
from fanout.config.passwords import read_audit_password, read_count_key, read_password, read_token
from fanout.config.pool import PoolConfig
from fanout.config.rules import Role
from fanout.config.settings import (
    HttpConfig,
    IdentityConfig,
    LinkConfig,
    ListenerConfig,
    LogConfig,
    NodeConfig,
    QueueOverflow,
    RetainedConfig,
    RetainPolicy,
    ServerConfig,
    SessionsConfig,
    ShipConfig,
)

__all__ = [
    "MEMBERS_MAX",
    "AccessConfig",
    "Address",
    "HttpConfig",
    "IdentityConfig",
    "LinkConfig",
    "ListenerConfig",
    "LogConfig",
    "MemberNumber",
    "NodeConfig",
    "PoolConfig",
    "QueueOverflow",
    "RetainPolicy",
    "RetainedConfig",
    "Role",
    "ServerConfig",
    "SessionsConfig",
    "ShipConfig",
    "load_config",
    "make_pool_token",
    "parse_config",
    "read_audit_password",
    "read_count_key",
    "read_password",
    "read_token",
]
