"""The logs as frames and plain values: schemas, files, survey, rows. The first step of a report."""
