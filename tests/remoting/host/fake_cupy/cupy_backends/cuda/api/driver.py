"""Stands for CuPy's bindings of the driver, of which these workers use nothing."""
