"""Data of a node on disk besides its log: retained values, and sessions of its clients."""
