"""Tests of fanout."""
