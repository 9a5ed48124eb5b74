"""The commit gate in front of acknowledgements, and the stored form of a session."""
