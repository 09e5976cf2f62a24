"""Placement: GPUs that fit a request, and the best offer."""
