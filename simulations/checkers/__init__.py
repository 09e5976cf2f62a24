"""Checkers of safety, policy and linearizability."""
