"""Time sharing of a GPU: the order of turns, and their announcement to the workers."""
