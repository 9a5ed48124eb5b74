"""Tests of the reports; those that start Spark share one session."""
