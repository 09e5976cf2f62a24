"""CUDA objects beside arrays: graphs and textures, behind operations of the array door."""
