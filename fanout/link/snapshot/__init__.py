"""Retained sets: how they are asked for, what proves that one is whole, and audits of them later. Core."""
