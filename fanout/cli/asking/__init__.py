"""Questions to a running node, over HTTP."""
