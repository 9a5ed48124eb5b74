"""From a batch of updates to the sessions that get it: subscribers, audiences, share groups, dispatch."""
