"""How models become the schema of the interface."""
