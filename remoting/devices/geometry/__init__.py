"""Distances between points, and searches for near points: `cupyx.scipy.spatial`."""
