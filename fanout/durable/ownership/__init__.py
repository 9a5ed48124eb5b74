"""Knowledge of a member about every session: its owner, the keepers of copies, and the rules by which these change."""
