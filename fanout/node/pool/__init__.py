"""The pool of a node: its documents, and the parts that make the node a member."""
