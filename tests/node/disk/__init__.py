"""The joints of a node: ingress, joined store, documents, order of start and stop."""
