"""Logs of a server: one line per event on stderr, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z info message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; whatever would break it into more is escaped."""
        line = f"{_time(record)} {record.levelname.lower():7} {_message(record)}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``part``, ``message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        body = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("gpupool."),
            "message": _message(record),
        }
        return json.dumps(body)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text += f" ({type(error).__name__}: {error})"
    return text


def set_up(kind: str, *, verbose: int) -> logging.Logger:
    """Send our logs to stderr, and return the logger of the command line.

    Args:
        kind: one of ``FORMATS``.
        verbose: 0 for what an administrator wants to know, 1 and more for every detail.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    root = logging.getLogger("gpupool")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    # The Raft library's own messages matter only when something is wrong.
    library = logging.getLogger("pysyncobj")
    library.handlers[:] = [handler]
    library.propagate = False
    library.setLevel(logging.DEBUG if verbose >= 2 else logging.WARNING)
    return logging.getLogger("gpupool.server")
