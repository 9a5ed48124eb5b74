"""What a node has on disk besides its log: retained values, and sessions of its clients."""
