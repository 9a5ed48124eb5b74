"""What stays of a report for later ones: the file of the trend."""
