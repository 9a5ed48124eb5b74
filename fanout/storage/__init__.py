"""Retained values on disk: the file, and the thread that writes it. Shell: knows nothing of MQTT sessions."""
