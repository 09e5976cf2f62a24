"""Leases of the array door that go on with another server."""
