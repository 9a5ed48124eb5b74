"""From PUBLISH rows to the replica, the hot path of a link: classify, convert, filter, apply."""
