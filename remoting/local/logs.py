"""Logs of a server: one line per event on stderr, as text or as JSON."""

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from gpupool.pool.errors import UsageError

MINUTE_S = 60.0
DURATION = re.compile(r"(?<![\w.])[\d.]+ (s|ms|min|h)\b")


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z info message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; characters that would break it are escaped."""
        line = f"{_time(record)} {record.levelname.lower():7} {_message(record)}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``part``, ``message``, and fields of some."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        body = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("gpupool."),
            "message": _message(record),
        }
        fields: object = getattr(record, "fields", None)
        if isinstance(fields, dict):
            body |= {k: v for k, v in cast("dict[str, Any]", fields).items() if k not in body}
        return json.dumps(body)


class OncePerMinute(logging.Handler):
    """Passes on a line at once, and its repetitions once a minute: conditions last for days.

    What a minute has held back is one line with the next record after it: the latest, and how many.
    Lines that differ in durations alone are the same: these grow while the condition lasts.
    """

    HELD_MAX = 1000

    def __init__(self, targets: list[logging.Handler]) -> None:
        super().__init__()
        self._targets = targets
        self._said: dict[str, tuple[float, int, logging.LogRecord]] = {}  # in the order of time

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a record, or hold it back."""
        try:
            text = f"{record.name} {record.levelno} {DURATION.sub('', _message(record))}"
        except Exception:  # noqa: BLE001 - a bad call of ours must not end a server
            self.handleError(record)
            return
        self._release(record.created)
        until, count, _ = self._said.get(text, (0.0, 0, record))
        if until:
            self._said[text] = until, count + 1, record
        else:
            self._pass_on(text, record)

    def _release(self, now: float) -> None:
        """Pass on the lines held back long enough, in the order of their last repetition."""
        held: list[tuple[float, str, int, logging.LogRecord]] = []
        while self._said:
            text, (until, count, record) = next(iter(self._said.items()))
            if until > now and len(self._said) < self.HELD_MAX:
                break
            del self._said[text]
            if count:
                held.append((record.created, text, count, record))
        for _, text, count, record in sorted(held, key=lambda each: each[0]):
            more = f"{_message(record)} ({count} more within a minute)"
            fields = record.__dict__ | {"msg": more, "args": (), "exc_info": None}
            self._pass_on(text, logging.makeLogRecord(fields), now)

    def _pass_on(self, text: str, record: logging.LogRecord, now: float | None = None) -> None:
        self._said[text] = (now or record.created) + MINUTE_S, 0, record
        for target in self._targets:
            target.handle(record)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text += f" ({type(error).__name__}: {error})"
    return SERVER_ID.sub(_named, text)


SERVER_ID = re.compile(r"\b[0-9a-f]{12}\b")
_names: list[Callable[[str], str | None]] = []


def name_servers(name_of: Callable[[str], str | None]) -> None:
    """Show servers by their names in all lines from now on, where ``name_of`` knows them."""
    _names[:] = [name_of]


def _named(found: re.Match[str]) -> str:
    name = _names[0](found[0]) if _names else None
    return name or found[0]


def set_up_client(*, verbose: int, log_file: str | None) -> None:
    """Send our logs where a command that talks to a pool was asked to: by default nowhere.

    Args:
        verbose: 2 and more for every message on stderr.
        log_file: gets the same, appended.

    Raises:
        UsageError: when the file cannot be written.
    """
    root = logging.getLogger("gpupool")
    root.handlers[:] = [logging.NullHandler()]
    root.propagate = False
    if verbose >= 2:
        _add(root, logging.StreamHandler(sys.stderr))
    if log_file:
        log_to_file(log_file)


class _LogFile(logging.FileHandler):
    """Says once that nothing more can be written, where `logging` prints a traceback each time."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        why = getattr(error, "strerror", None) or error
        if not self._said:
            self._said = True
            sys.stderr.write(f"gpupool: no more is written to the log {self.baseFilename}: {why}\n")


def log_to_file(path: str) -> None:
    """Append our logs to a file, in full.

    Raises:
        UsageError: when it cannot be written.
    """
    try:
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
        hint = "--log-file or GPUPOOL_LOG names it"
        raise UsageError("the log file cannot be written", why=why, hint=hint) from error
    _add(logging.getLogger("gpupool"), handler)


def _add(root: logging.Logger, handler: logging.Handler) -> None:
    handler.setFormatter(TextFormatter())
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)


def set_up(kind: str, *, verbose: int, log_file: str | None = None) -> logging.Logger:
    """Send our logs to stderr, and return the logger of the command line.

    Args:
        kind: "text" or "json".
        verbose: 0 for what an administrator wants to know, 1 and more for every detail.
        log_file: gets the same, appended.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    handlers: list[logging.Handler] = [handler]
    if log_file:
        log_to_file(log_file)
        handlers.append(logging.getLogger("gpupool").handlers[-1])
        handlers[-1].setFormatter(handler.formatter)
    if not verbose:
        handlers = [OncePerMinute(handlers)]
    root = logging.getLogger("gpupool")
    root.handlers[:] = handlers
    root.propagate = False
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    # The Raft library's own messages matter only when something is wrong.
    library = logging.getLogger("pysyncobj")
    library.handlers[:] = handlers
    library.propagate = False
    library.setLevel(logging.DEBUG if verbose >= 2 else logging.WARNING)
    return logging.getLogger("gpupool.server")
