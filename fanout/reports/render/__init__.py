"""A finished report as text for a terminal, as one HTML page, as JSON; none of it computes a figure."""
