"""The files of a replication log: schema, columns, segments, sealed Parquet, the lock of a node."""
