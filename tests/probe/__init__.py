"""Tests of `fanout.probe`."""
