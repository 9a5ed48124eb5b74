"""The replication log: the updates that a node published or applied, written as they happen, read by reports."""
