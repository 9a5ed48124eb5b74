"""Tests of the renderings."""
