"""Reading of topics and events of a node."""
