"""Network Connections of a link: addresses, TCP, TLS, WebSocket, reading in large pieces."""
