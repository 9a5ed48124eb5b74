"""Routing of updates to sessions: subscribers, audiences, share groups, dispatch."""
