"""The commands that tell what was used, measured and found; one file each."""
