"""The replica: topics and retained values, what a batch changes in them, and digests over them. Core: no I/O."""
