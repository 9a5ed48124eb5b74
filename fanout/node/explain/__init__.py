"""Explanation of one topic: what this node holds, what the primary has, and why they differ."""
