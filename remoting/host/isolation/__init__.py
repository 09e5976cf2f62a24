"""Isolation of workers: users, control groups, mounts, and the parts of it in force."""
