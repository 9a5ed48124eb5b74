"""New connections before MQTT is spoken: listeners, PROXY header, TLS, WebSocket, limits."""
