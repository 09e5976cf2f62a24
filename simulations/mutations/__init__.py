"""Deliberately broken builds that the checkers must notice."""
