"""The way of a session from one member to another."""
