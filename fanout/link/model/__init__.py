"""Values that several parts of a link share: states, events, status, evidence."""
