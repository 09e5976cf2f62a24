"""Privilege separation of a server that root started: the privileged helper and its server."""
