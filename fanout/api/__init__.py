"""HTTP interface of a node: probes for orchestrators, documents for people and tools, metrics for Prometheus."""
