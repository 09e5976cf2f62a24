"""The one port: places for unauthenticated peers, handshakes, and the route of each connection."""
