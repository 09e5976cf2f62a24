"""State transitions: each command applied to the table."""
