"""Listener for AMQP 1.0: serves JMS applications through the server's ports for clients of MQTT (decision 0075)."""
