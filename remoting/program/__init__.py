"""Running programs on leases: the child process, its agent, its door, held leases."""
