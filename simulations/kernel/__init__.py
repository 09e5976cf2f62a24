"""The simulated machine room: virtual time, network, disks, clocks, processes."""
