"""What a server measures of its sessions and of its machine."""
