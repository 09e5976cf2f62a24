"""What travels between the CUDA door's library and the worker: one table for both ends."""
