"""Tests of the DataFrame transforms."""
