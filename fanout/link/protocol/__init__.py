"""MQTT between a link and its primary: outgoing packets, the handshake, the session at the primary."""
