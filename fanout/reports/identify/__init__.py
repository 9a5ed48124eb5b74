"""Pairs to compare: the reference, and the links paired with it."""
