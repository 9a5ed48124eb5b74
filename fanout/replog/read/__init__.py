"""Readers of a replication log, also while it is written: rows, figures, checks."""
