"""The hot path of a link, from PUBLISH rows to the replica: convert, filter, apply."""
