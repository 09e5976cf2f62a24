"""The control server: its controller, its services and the port that they share."""
