"""Shares of a GPU's time: who has the turn, and how the workers hear of it."""
