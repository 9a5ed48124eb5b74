"""The replica: topics and retained values, what a batch changes in them, digests over them. Core: no I/O."""
