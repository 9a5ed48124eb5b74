"""Pieces shared by tests: real servers, faulty networks, and waiting for conditions."""
