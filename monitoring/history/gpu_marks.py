"""Marks of a GPU in the history: reasons for reduced clocks, and Xid errors. Pure.

A mark is a number, so that it is a key of a table: a reason, of which milliseconds are kept, or an
Xid error, of which it is kept how often it came. A GPU to which nothing happens has no rows.
"""

REASONS = ("power", "thermal", "hw_thermal", "hw_power_brake", "sync_boost")
"""Those of ``GpuTelemetry.throttled_s``, in an order that stays: their places are in files."""

FIRST_XID = 1000
THROTTLED, XID = "throttled", "xid"


def reason_mark(reason: str) -> int | None:
    """Return the mark of a reason for which clocks are held down; None if it is not known."""
    return REASONS.index(reason) if reason in REASONS else None


def xid_mark(xid: int) -> int:
    """Return the mark of an Xid error."""
    return FIRST_XID + xid


def word_of(mark: int) -> str:
    """Return a mark's word for questions: ``throttled.power``, ``xid.79``; empty for none."""
    if mark >= FIRST_XID:
        return f"{XID}.{mark - FIRST_XID}"
    return f"{THROTTLED}.{REASONS[mark]}" if 0 <= mark < len(REASONS) else ""
