"""Faults drawn from the seed."""
