"""Privilege separation of a server that was started as root: the keeper's process, and the rest."""
