"""Trace analysis of GPU use: the users that a pool would serve, and the GPUs it would need."""
