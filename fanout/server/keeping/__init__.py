"""Keeping of durable sessions beyond their process: on the disk, and at another member of a pool."""
