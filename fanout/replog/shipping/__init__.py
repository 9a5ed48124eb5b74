"""Sealed files on their way to an object store and back."""
