"""The configuration of a node: a TOML file becomes frozen dataclasses, or a `ConfigError` with every fault.

Pydantic validates (`values`, `settings`, `translation`), `rules` judges what one value alone cannot show, and
`loading` joins them. Nothing outside this package imports Pydantic for the configuration.
"""

from fanout.access.settings import AccessConfig
from fanout.config.address import Address
from fanout.config.loading import load_config, parse_config
from fanout.config.passwords import read_count_key, read_password
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
    ShipConfig,
)

__all__ = [
    "AccessConfig",
    "Address",
    "HttpConfig",
    "IdentityConfig",
    "LinkConfig",
    "ListenerConfig",
    "LogConfig",
    "NodeConfig",
    "QueueOverflow",
    "RetainPolicy",
    "RetainedConfig",
    "Role",
    "ServerConfig",
    "ShipConfig",
    "load_config",
    "parse_config",
    "read_count_key",
    "read_password",
]
