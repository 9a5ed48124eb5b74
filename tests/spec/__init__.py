"""Tests of the server by the statements of MQTT 5 and MQTT 3.1.1, filed by section."""
