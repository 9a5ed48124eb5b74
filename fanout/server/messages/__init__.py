"""Messages on their way to clients: their bytes, their queues, the shared in-flight log."""
