"""Chaos runs: real nodes beside a real Mosquitto, faults drawn from a seed, and checks from outside.

`plan` draws, `faults` acts, `publisher` and `truth` know what the primary must hold, `probe` and `witness` are local
clients that find what is wrong, `explain` asks the reports, `run` joins them for one seed, `command` is the command
line.
Nothing here uses fanout's own codec or replica: it is the independent side.
"""
