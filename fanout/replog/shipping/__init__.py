"""Shipping of sealed files to an object store, and fetching them back."""
