"""The tables of driver calls and records, which both ends have in common."""
