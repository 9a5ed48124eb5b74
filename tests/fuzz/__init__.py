"""Fuzzing: random input for the codec and for a listening node; `python -m tests.fuzz` for the long run."""
