"""The commands of ``gpupool``, one module each, imported when they are called."""
