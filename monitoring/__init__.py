"""A pool's records and reports: accounting, history, metrics, health, analysis.

Rules are pure modules, which take time and values as arguments. Only ``cli`` imports this package.
"""
