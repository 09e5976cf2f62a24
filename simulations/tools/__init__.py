"""Running a simulation: scenarios, bounds, and recovery without help."""
