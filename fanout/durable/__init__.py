"""Durable sessions: their bytes, on disk, as copies at other members of a pool, and on their way between members."""
