"""Pool: messages between members, the members that answer, and the connections between them."""
