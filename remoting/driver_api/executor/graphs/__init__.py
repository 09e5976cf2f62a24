"""CUDA graphs: captured, built, changed and launched."""
