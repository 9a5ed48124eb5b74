"""Retained sets: how they are requested, the evidence that one is complete, and later audits."""
