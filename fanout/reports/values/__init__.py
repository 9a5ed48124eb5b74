"""The values of a finished report: figures, findings, the document. They know neither Spark nor rendering."""
