"""Running, searching, shrinking and measuring simulations."""
