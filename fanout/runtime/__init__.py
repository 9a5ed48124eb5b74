"""Services of a process: the clock, logging, garbage collection, delays of retries, WebSocket."""
