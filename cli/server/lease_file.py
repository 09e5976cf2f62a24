"""A server's own file of ended leases, from which its observer makes the accounts."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from gpupool.cli.server.numbered_log import FILE_SIZE_MAX, NumberedLog
from gpupool.monitoring.record_lines import FILE_NAME, line_of, record_of
from gpupool.pool.model.state import LeaseRecord

FOLDER = "monitoring"
"""In the state directory: all that the observer may read and write."""


class LeaseLog(NumberedLog[LeaseRecord]):
    """Appends the records that ``record`` is given to the file, in ``run``.

    A gap in the numbers is what was dropped before this server saw it.
    """

    def __init__(
        self, state_dir: Path, log: logging.Logger, *, written: Callable[[], None] = lambda: None
    ) -> None:
        """Find the last record in the file of ``state_dir``.

        Raises:
            StorageError: when the file cannot be read or cut.
        """
        super().__init__(
            monitoring_folder(state_dir) / FILE_NAME,
            log,
            what="records of leases",
            lines_of=_lines,
            number_of=lambda line: record_of(line).number,
            size_max=FILE_SIZE_MAX,
            written=written,
        )


def _lines(records: Sequence[LeaseRecord], _last: int) -> list[str]:
    return [line_of(record) for record in records]


def monitoring_folder(state_dir: Path) -> Path:
    """Return the observer's folder, made if it is missing."""
    folder = state_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
