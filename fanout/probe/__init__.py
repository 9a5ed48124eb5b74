"""What a broker does that a link relies on, found out from outside with a client that is not ours (aiomqtt)."""
