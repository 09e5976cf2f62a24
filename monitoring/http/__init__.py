"""The observer's HTTP: what it answers over the one port, to whom, and within which limits."""
