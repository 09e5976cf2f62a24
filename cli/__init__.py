"""The command line: commands, the run of a program, the start of a server, the live view."""
