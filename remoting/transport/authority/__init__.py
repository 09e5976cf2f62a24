"""The CA: its key and the key's holders, its exchange, and the certificates that it signs."""
