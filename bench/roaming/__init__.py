"""Roaming: clients that are cut at any point of a handshake and come back at another member of a pool."""
