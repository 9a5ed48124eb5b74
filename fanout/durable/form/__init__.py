"""The bytes of a session: its value, its record on disk and its copy at another member."""
