"""Commands that read topics and events of a node."""
