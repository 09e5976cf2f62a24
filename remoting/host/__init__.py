"""The host side of a GPU server: inventory, worker processes, telemetry, health."""
