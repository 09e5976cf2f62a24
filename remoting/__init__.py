"""Everything that crosses the network to a GPU: wire, control, sessions, hosts and doors."""
