"""The session of a link as one machine: bytes and time in, bytes and events out."""
