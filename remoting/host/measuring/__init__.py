"""Measurements of a server's sessions and of its machine."""
