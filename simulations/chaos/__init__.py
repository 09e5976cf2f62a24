"""Chaos on real processes."""
