"""Copies of sessions at other members of a pool, and what becomes of them when a member is gone."""
