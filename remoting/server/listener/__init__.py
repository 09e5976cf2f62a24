"""The one port: strangers' places, handshakes, and who gets each connection."""
