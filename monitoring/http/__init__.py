"""The exporter's HTTP: its answers over the one port, its clients, and its limits."""
