"""What users write on the command line: times, files, the options that several reports share."""
