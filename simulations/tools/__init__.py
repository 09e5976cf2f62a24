"""Running a simulation: scenarios, bounds, and what must come right by itself."""
