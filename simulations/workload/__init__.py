"""Requests and policies drawn from the seed."""
