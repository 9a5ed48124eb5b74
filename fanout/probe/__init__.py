"""Probe: tests the features of a broker that a link relies on, from outside, with an independent client (aiomqtt)."""
