"""Modules, kernels and what is compiled or linked for them."""
