"""The history of one server: what it measured, in ``history.db``, and what is read from it."""
