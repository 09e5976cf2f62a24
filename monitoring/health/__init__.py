"""Health: checks of readings, the findings that they lead to, and the alerts made of those."""
