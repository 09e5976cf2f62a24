"""What people see of a pool: derived at one place, shown by the command line and the page."""
