"""Measurements of fanout beside real peers, in one run: `python -m bench NAME`."""
