"""Plan that the seed decides: the configuration of one run, and fault after fault.

Owns the draw; everything that it returns follows from the seed alone. It must not know how a fault is done.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

__all__ = [
    "ABOVE",
    "EDGES",
    "LEAF",
    "NARROW",
    "PRIMARIES",
    "PRIMARY",
    "PROXIED",
    "ROLL_BACK",
    "SAMPLE_TOPICS",
    "Fault",
    "Setting",
    "draw_faults",
    "draw_setting",
]

PRIMARY = "primary"
PROXIED = "edge-a"
"""The secondary whose link goes through the proxy."""
EDGES = (PROXIED, "edge-b")
LEAF = "leaf"
"""A secondary of the second of them, in some runs."""
ABOVE = {LEAF: EDGES[1]}
"""Path between a node and the primary."""
PRIMARIES = ("mosquitto", "fanout")
"""Kinds of primary."""
SAMPLE_TOPICS = 256
"""Topics of each selector that a link asks for with each heartbeat: all, for a single lost update may be the fault."""
_SAMPLED_S = 3.0
"""Longest time for which samples do not notice a difference."""
_HOP_S = 4.0
"""Extra time without notice of a loss one hop further below: three heartbeats more, and a busy machine."""
NARROW = "narrow rights"
"""The user of the links may not read some topics any more; the primary goes on, and silently delivers the others."""
ROLL_BACK = "kill and roll back"
"""The primary begins anew with a database that it had some seconds before."""
_PRIMARY_KINDS = {"kill": 4, "kill and wipe": 3, "restart": 2, "stop": 3}
_MOSQUITTO_KINDS = {NARROW: 4, ROLL_BACK: 3}
_EDGE_KINDS = {"kill": 3, "stop": 3, "cut": 3, "black hole": 4, "half open": 2, "cut witness": 1}
_THROUGH_PROXY = ("cut", "black hole", "half open")
_BURSTS = {"mixed": 4, "value": 2, "clear": 2, "expiring": 2}
_BURST_MESSAGES = (20, 100, 400)
_QUIET = 0.4
_OUTAGE_S = (0.1, 6.0)
_TOGETHER = 0.25
_RECOVER = 0.7
_STORED = 0.4
_HAS_LEAF = 0.35
_FANOUT = 0.3
_OLD_LINK = 0.4
_STAMPED = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """Configuration of the servers of one run."""

    max_queued_messages: int
    """Limit of the primary, beyond which it drops silently; 0 for no limit."""
    audit_interval_s: float
    """Interval of every link: short if the primary drops, for nothing else finds what a live session has lost."""
    session_expiry_s: int
    """Session Expiry Interval of the link behind the proxy."""
    on_session_loss: str
    """Policy of the other secondary."""
    stored: bool = False
    """True if the other secondary has its retained values on disk, hence after a kill too."""
    primary_role: str = "mosquitto"
    """Kind of the primary: `mosquitto`, or `fanout` with its retained values on disk."""
    has_leaf: bool = False
    """True if there is a secondary of the other secondary."""
    publish_qos: int = 1
    """QoS of all that is published."""
    version: int = 5
    """MQTT version of the link behind the proxy; 4 means MQTT 3.1.1, and then properties are not published."""
    stamped: bool = False
    """True if the other secondary stamps what a Mosquitto brings it, for the one below it."""

    @property
    def edges(self) -> tuple[str, ...]:
        """The secondaries of the run."""
        return (*EDGES, LEAF) if self.has_leaf else EDGES

    @property
    def prefix(self) -> str:
        """Prefix of the other secondary before `plant/`: empty if it stamps, because names must stay as they are.

        Topics that a first-tier node replicates with a prefix are not compared with those below it.
        """
        return "" if self.stamped else "site/"

    @property
    def horizon_s(self) -> float:
        """Longest time for which a node may call itself ready without a value of the primary.

        A lost connection shows after three heartbeats of 0.5 s and the half second before the first of them. Narrowed
        rights, and a loss in a live session, show with a sample or the next audit, at most a tenth late. The rest is
        for a busy machine.
        """
        audit_s = self.audit_interval_s * 1.1 + 1.5 if self.max_queued_messages else 0.0
        sampled_s = _SAMPLED_S if self.primary_role == "mosquitto" else 0.0
        return 4.0 + max(audit_s, sampled_s)

    @property
    def proxied_horizon_s(self) -> float:
        """The same of the node behind the proxy, whose link has no heartbeats over MQTT 3.1.1.

        There the bridge bit keeps them from coming back, and a connection that swallows everything shows by a PINGREQ
        without an answer: after twice the Keep Alive of 5 s.
        """
        return self.horizon_s if self.version == 5 else max(self.horizon_s, 12.0)

    def horizon_of(self, node: str) -> float:
        """Return the same of any node of the run."""
        if node in ABOVE:
            return self.horizon_s + _HOP_S
        return self.proxied_horizon_s if node == PROXIED else self.horizon_s


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    target: str
    """`PRIMARY` or a secondary."""
    kind: str
    """The fault."""
    outage_s: float
    """Its duration."""
    burst: tuple[str, int] | None
    """Kind and number of messages published meanwhile; None for the publisher's own pace."""
    burst_after: tuple[str, int] | None
    """The same for the moment after it, when links resume, verify and take snapshots."""

    def __str__(self) -> str:
        return f"{self.target}: {self.kind} for {self.outage_s:.1f} s"


def draw_setting(draw: random.Random, variety: random.Random, *, primary_role: str | None = None) -> Setting:
    """Return the configuration of a run.

    Args:
        draw: Goes on to decide the faults.
        variety: Decides what was added later, so that a seed keeps its faults.
        primary_role: One of `PRIMARIES`, whatever is drawn; `fanout` has no limit of its queue. None lets it be drawn.
    """
    setting = _draw_plain_setting(draw)
    is_tight = setting.max_queued_messages > 0
    setting = replace(
        setting,
        stored=variety.random() < _STORED,
        has_leaf=variety.random() < _HAS_LEAF,
        publish_qos=variety.choice((1, 1, 2)),
        primary_role="fanout" if variety.random() < _FANOUT and not is_tight else "mosquitto",
        version=4 if variety.random() < _OLD_LINK and not is_tight else 5,
    )
    if primary_role is not None:
        max_queued_messages = setting.max_queued_messages if primary_role == "mosquitto" else 0
        setting = replace(setting, primary_role=primary_role, max_queued_messages=max_queued_messages)
    # Drawn in every run, so that what may be added after it does not depend on the rest.
    stamped = variety.random() < _STAMPED
    return replace(setting, stamped=stamped and setting.has_leaf and setting.primary_role == "mosquitto")


def _draw_plain_setting(draw: random.Random) -> Setting:
    tight = draw.random() < 0.5
    setting = Setting(
        max_queued_messages=draw.choice((20, 100)) if tight else 0,
        audit_interval_s=3.0 if tight else 3600.0,
        session_expiry_s=draw.choice((2, 300, 300)),
        on_session_loss=draw.choice(("tear_down", "serve_stale")),
    )
    draw.choice((1, 1, 2))  # of a setting that is gone, so that each seed keeps its faults
    return setting


def draw_faults(draw: random.Random, setting: Setting) -> tuple[list[Fault], bool]:
    """Return one fault, or two of different targets at a time; and True to wait for all nodes to be ready after it."""
    first = _draw_fault(draw, draw.choice((PRIMARY, PROXIED, *setting.edges)), setting)
    faults = [first]
    if draw.random() < _TOGETHER:
        others = [each for each in (PRIMARY, *setting.edges) if each != first.target]
        faults.append(_draw_fault(draw, draw.choice(others), setting))
    return faults, draw.random() < _RECOVER


def _draw_fault(draw: random.Random, target: str, setting: Setting) -> Fault:
    kinds = dict(_PRIMARY_KINDS if target == PRIMARY else _EDGE_KINDS)
    if target == PRIMARY and setting.primary_role == "mosquitto":
        kinds |= _MOSQUITTO_KINDS
    if target not in (PRIMARY, PROXIED):
        for kind in _THROUGH_PROXY:
            del kinds[kind]
    kind = draw.choices(list(kinds), weights=list(kinds.values()))[0]
    return Fault(target, kind, draw.uniform(*_OUTAGE_S), _draw_burst(draw), _draw_burst(draw))


def _draw_burst(draw: random.Random) -> tuple[str, int] | None:
    if draw.random() < _QUIET:
        return None
    return draw.choices(list(_BURSTS), weights=list(_BURSTS.values()))[0], draw.choice(_BURST_MESSAGES)
