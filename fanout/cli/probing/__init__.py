"""Commands that try a link at a broker before there is a node."""
