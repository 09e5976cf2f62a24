"""What keeps workers apart: users, control groups, mounts, and what of it is in force."""
