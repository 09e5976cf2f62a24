"""Files of records that a server only appends to: ended leases and administrative acts."""
