"""The web page of a pool: a Starlette application over a ``PoolSource``, and its static files."""
