"""Interpolators of a worker's library: their names, and the operations on them."""
