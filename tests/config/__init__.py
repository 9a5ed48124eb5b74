"""Tests of `fanout.config`, one module for each of its modules."""
