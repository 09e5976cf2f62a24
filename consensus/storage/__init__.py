"""Durable state: the journal, snapshots and the file operations below them."""
