"""What a member knows of every session: who has it, who keeps a copy, and the rules by which that changes."""
