"""Probe: tries a link of a node at a primary, with one set of settings after another, until it was ready once."""
