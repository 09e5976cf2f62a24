"""What a pool remembers and tells of itself: accounting, history, metrics, health, analysis.

Rules are pure modules, which take time and values as arguments. Only ``cli`` imports this package.
"""
