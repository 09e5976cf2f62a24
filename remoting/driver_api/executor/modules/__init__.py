"""Modules and kernels, with their compilation and linking."""
