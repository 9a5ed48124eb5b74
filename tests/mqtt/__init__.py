"""Tests of `fanout.mqtt`, one module per module."""
