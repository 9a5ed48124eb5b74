"""MQTT 5.0 and 3.1.1 without I/O: packets, properties, topics, Packet Identifiers and QoS state. Core: no I/O."""
