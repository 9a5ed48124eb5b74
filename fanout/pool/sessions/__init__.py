"""Sessions of a pool: which member has the session of a client, and how it goes to another one."""
