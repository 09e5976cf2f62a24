"""The worker's side of the CUDA door: records executed in their order."""
