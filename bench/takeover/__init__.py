"""Take-over: thousands of durable sessions of a member that dies go on at the others."""
