"""Distances between points, and what finds points near others: `cupyx.scipy.spatial`."""
