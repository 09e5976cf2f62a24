"""Placement: which GPUs fit a request, and which offer is best."""
