"""What is wrong with a configuration, as plain tuples."""

from __future__ import annotations

from fanout.config import Role, parse_config
from fanout.errors import ConfigError

NODE = '[node]\nid = "edge-1"\n'
SERVER = "[server]\n"
LINK = '[[link]]\nname = "plant"\nprimary = "mqtt://primary-host"\n'
SELECTOR = '[[link.selector]]\nfilter = "plant/#"\n'


def faults_of(text: str, *, role: Role | None = None) -> list[tuple[str, str, str]]:
    """Return key, problem and hint of every fault; none when there is no fault."""
    try:
        parse_config(text, path="edge.toml", role=role)
    except ConfigError as error:
        return [(fault.key, fault.problem, fault.hint) for fault in error.faults]
    return []
