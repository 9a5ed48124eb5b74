"""Keeping of durable sessions beyond their process."""
