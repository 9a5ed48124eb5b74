"""Messages to clients: encoding, batches and queues, the shared in-flight log."""
