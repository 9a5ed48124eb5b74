"""Pages, streams and activity of topics, and newest events, for the HTTP interface."""
