"""Raft's rules: pysyncobj's core with safe elections and replication."""
