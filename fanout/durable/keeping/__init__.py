"""Keepers of durable sessions outside of this process: the journal on disk, and copies at other members."""
