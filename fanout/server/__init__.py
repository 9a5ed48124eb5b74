"""The server: what local MQTT clients talk to. `fanout.node` joins it with links, replicas and the log."""

from fanout.server.base.counters import DropReason
from fanout.server.base.ports import Clock, Ingress, Logger, PublishVerdict, RetainedStore
from fanout.server.client.server import Server

__all__ = [
    "Clock",
    "DropReason",
    "Ingress",
    "Logger",
    "PublishVerdict",
    "RetainedStore",
    "Server",
]
