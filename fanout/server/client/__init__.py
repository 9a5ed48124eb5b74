"""Local clients: the server, connections, authorization, session lifecycle, packet handlers."""
