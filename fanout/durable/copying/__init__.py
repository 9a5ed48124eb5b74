"""Copies of sessions at other members, and what becomes of them when a member is gone."""
