"""CUDA objects beside arrays: textures, behind operations of the array door."""
