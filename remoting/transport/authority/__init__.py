"""The CA: its key and who holds it, its exchange, and the certificates that it signs."""
