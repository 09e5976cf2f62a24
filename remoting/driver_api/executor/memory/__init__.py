"""Device, pinned, managed and shared memory of a client process."""
