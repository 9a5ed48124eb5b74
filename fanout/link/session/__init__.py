"""The MQTT session of a link as one machine without I/O: bytes and time in, bytes and events out."""
