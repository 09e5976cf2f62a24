"""Raft messages, configurations and the closed CBOR codec; no I/O."""
