"""The connection of the drop-in to its GPU servers: wire format, sessions, inference."""
