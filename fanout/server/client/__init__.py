"""Local clients: the server, their connections, who is let in, what each packet does."""
