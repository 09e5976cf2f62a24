"""What only CUDA has: graphs and textures, behind operations of the array door."""
