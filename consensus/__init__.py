"""The replicated table: pysyncobj's Raft core, made durable and safe, behind trio."""
