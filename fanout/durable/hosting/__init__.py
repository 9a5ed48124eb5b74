"""The sessions of a server: out of it as values, and into it from a value, a record or a copy."""
