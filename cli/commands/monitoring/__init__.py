"""Commands that report usage, metrics and health findings; one file each."""
