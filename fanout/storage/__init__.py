"""Retained values on disk: the SQLite file, the thread that writes it, and replicas that live in it."""
