"""The pool as pure data and rules: no I/O, no clock, no randomness."""
