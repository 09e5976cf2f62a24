"""GPU use from traces: who would be served by a pool, and how many GPUs it would need."""
