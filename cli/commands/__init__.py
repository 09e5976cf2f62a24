"""The commands of ``gpupool``; ``main`` imports a module when one of its commands is called."""
