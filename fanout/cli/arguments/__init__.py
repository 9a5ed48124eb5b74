"""Arguments of commands: times, files, the common options of reports."""
