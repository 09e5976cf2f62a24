"""Helpers of `cupy.lib`."""

from cupy.lib import stride_tricks as stride_tricks
