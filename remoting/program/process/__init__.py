"""The process of a program, and its signals, as they would be without us."""
