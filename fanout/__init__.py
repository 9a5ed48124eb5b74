"""A fan-out replicator for MQTT: secondaries that mirror a primary, prove it, and serve thousands of clients."""

__all__ = ["__version__"]

__version__ = "0.1.0"
