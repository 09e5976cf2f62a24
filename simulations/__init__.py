"""A whole cluster with its clients in one process, under virtual time and drawn faults."""
