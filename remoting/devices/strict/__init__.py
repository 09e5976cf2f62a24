"""Strict mode of emulated GPUs: unwritten elements, and the order of work on streams."""
