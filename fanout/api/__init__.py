"""The node's HTTP face: probes for orchestrators, documents for people and tools, metrics for Prometheus."""
