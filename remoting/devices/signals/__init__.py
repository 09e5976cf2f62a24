"""Linear systems of `cupyx.scipy.signal`."""
