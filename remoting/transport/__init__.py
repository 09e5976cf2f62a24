"""Connections over trio, sockets and TLS: streams, dialling, peers, certificates."""
