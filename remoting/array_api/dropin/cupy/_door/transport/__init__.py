"""Bytes between the program and its workers: sockets, threads that send, and frames."""
