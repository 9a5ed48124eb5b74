"""Tests of `fanout.kept`."""
