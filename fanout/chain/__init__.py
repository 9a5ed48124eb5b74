"""Protocol between fanout nodes beside the messages: stamps, manifests and readiness notices."""
