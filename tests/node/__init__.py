"""The joints of a node: ingress, combined store, documents, order of start and stop."""
