"""Several processes that serve the clients of one node."""
