"""End to end, through the public surface only: real brokers, real nodes, real clients."""
