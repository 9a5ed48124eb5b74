"""Shared foundations of the server: ports to the node, counters, deadlines and timer, pacing."""
