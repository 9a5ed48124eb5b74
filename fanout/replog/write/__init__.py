"""Writer of a replication log: queue, segments, sealing, recovery after a crash."""
