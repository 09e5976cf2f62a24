"""Driver calls that few programs make."""
