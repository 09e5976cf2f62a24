"""The command line: one file per command, composition, and the live view."""
