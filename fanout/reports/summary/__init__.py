"""The answers of a report: complete or not, how late, getting worse or not; from its finished figures."""
