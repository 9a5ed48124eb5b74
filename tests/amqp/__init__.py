"""Tests of `fanout.amqp`."""
