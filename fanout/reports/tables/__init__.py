"""The results of a report as tables: their columns, and where they are appended."""
