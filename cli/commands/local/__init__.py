"""Commands about a pool on this machine alone."""
