"""The way of a call: its arguments, how it is sent, and the array that stands for the result."""
