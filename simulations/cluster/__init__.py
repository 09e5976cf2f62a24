"""Servers, clients and operators of a simulated pool."""
