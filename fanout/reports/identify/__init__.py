"""What is compared with what: the reference, and the links paired with it."""
