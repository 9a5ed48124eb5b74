"""New connections before MQTT starts: listeners, PROXY header, TLS, WebSocket, connection limits."""
