"""The worker process: sandbox, channel to its host, links to other workers."""
