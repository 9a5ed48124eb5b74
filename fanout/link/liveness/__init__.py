"""Liveness of a connection: heartbeats through the data path, the Keep Alive, lag in items."""
