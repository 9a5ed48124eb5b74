"""Sessions of local clients: sender and receiver, retained delivery, Will Messages, the registry of sessions."""
