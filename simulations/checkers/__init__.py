"""Checkers: what must hold in every run."""
