"""The client of a pool: connections to its servers, and leases from them."""
