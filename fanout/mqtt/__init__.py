"""MQTT 5.0 and 3.1.1 without I/O: packets, properties, topics, Packet Identifiers, QoS state. Core."""
