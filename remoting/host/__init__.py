"""What a GPU server does for its sessions: inventory, worker processes, telemetry, health."""
