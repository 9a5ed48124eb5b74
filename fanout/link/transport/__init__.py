"""Network Connections of a link: failover between addresses, TCP, TLS, WebSocket, large reads."""
