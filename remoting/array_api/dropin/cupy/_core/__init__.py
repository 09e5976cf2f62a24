"""Arrays and ufuncs of the drop-in."""
