"""Signs of life: heartbeats through the data path, the Keep Alive, lag in items. Core."""
