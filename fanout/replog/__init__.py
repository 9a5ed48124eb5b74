"""The replication log: what a node published or applied, written as it happens and read by the reports."""
