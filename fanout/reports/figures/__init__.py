"""The jobs: they run the comparisons and put the results into a document of figures."""
