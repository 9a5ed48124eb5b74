"""The commit gate in front of acknowledgements, and how a session is stored with its values."""
