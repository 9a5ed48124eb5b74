"""Tests of the replication log."""
