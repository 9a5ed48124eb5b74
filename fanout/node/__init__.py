"""One node: joins links, replicas, server, replication log and HTTP interface; owns the order of start and stop."""

from fanout.node.process import run_node

__all__ = ["run_node"]
