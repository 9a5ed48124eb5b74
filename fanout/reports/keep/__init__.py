"""Reports that stay: tables kept up to date from sealed files, and compacted logs."""
