"""The worker's side of the array door."""
