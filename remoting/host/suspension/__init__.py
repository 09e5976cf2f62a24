"""Suspension of workers: their GPU memory goes into the server's memory, and comes back."""
