"""Python's search for cyclic garbage, kept away from the table.

A full collection visits every object that is tracked: 100 ms with a table of 10,000 leases, in
which nothing else runs. The table has no cycles, so nothing of it is ever found. So a server
exempts all objects (``gc.freeze``) at its start and after each snapshot. An exempt object is still
freed when nothing refers to it any more, unless it has become part of a cycle. When twice as many
objects are exempt as after the last full collection, there is another full collection.
"""

import gc


class Exemption:
    """Call it after a table was read or written."""

    def __init__(self) -> None:
        """Exempt nothing yet."""
        self._limit = 0

    def __call__(self) -> None:
        """Exempt everything that there is from later collections."""
        if self._limit and gc.get_freeze_count() > self._limit:
            gc.unfreeze()
            gc.collect()
            self._limit = 0
        gc.freeze()
        if not self._limit:
            self._limit = 2 * gc.get_freeze_count()
