"""How long the history is kept, and how large it may grow: the options of ``gpupool join``."""

from dataclasses import dataclass

from gpupool.pool.model.units import DAY_S

NOT_BEGUN = "its exporter has not begun yet"
FULL = "the history is not kept: its disk is nearly full"
CAPPED = "the history is not kept: its files are as large as they may be"
SET_BACK = "the history is not kept: the clock was set back, and has to catch up first"
"""Status text of an exporter."""

PASSING = FULL, CAPPED, SET_BACK
"""Those that are no fault of the database: it can be read, and is written again later."""


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """How long rows are kept, and how large the files may be."""

    keep_10s_s: int = DAY_S
    keep_1m_s: int = 30 * DAY_S
    keep_1h_s: int = 731 * DAY_S
    size_max: int = 1 << 30

    def kept_s(self) -> tuple[int, int, int]:
        """Return for how long each tier is kept."""
        return (self.keep_10s_s, self.keep_1m_s, self.keep_1h_s)
