"""The page at `/`: files that a browser loads from the node, and from nowhere else."""
