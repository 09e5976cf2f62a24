"""GPU use from traces: whom a pool would serve, and how many GPUs it would need."""
