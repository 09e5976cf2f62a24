"""The pool as people see it: derived at one place, shown by the command line and the page."""
