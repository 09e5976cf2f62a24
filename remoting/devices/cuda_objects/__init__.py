"""What CUDA has beside arrays: graphs and textures, behind operations of the array door."""
