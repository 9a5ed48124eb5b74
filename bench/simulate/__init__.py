"""Simulate: the real nodes of a pool in one process, with virtual time, a network in memory and faults of a seed."""
