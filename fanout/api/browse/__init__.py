"""Reading of topics, live values and events over HTTP."""
