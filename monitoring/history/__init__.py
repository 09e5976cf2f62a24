"""The history of one server: its measurements in ``history.db``, and their queries."""
