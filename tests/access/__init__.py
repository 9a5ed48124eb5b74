"""Tests of `fanout.access`."""
