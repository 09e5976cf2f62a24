"""The server side of the command line: composition, bootstrap and the state directory."""
