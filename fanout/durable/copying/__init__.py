"""Copies of sessions at other members, and their use when a member is gone."""
