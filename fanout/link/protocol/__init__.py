"""MQTT between a link and its primary: what is sent, what answers mean, the remote session. Core."""
