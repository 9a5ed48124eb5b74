"""The replica: retained values by topic, the changes of a batch, digests over all values. Core: no I/O."""
