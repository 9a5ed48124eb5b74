"""Pool: what members of a pool tell each other, who answers, and the connections between them."""
