"""Tests of `fanout.storage`."""
