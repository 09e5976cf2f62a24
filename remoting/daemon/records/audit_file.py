"""A server's own audit file: every administrative act of the pool, one JSON object a line.

The table keeps the latest 1024 acts; this file keeps all acts since the server joined. Lines are
only appended. A full file is renamed and the oldest one is removed, so the files take a bounded
part of the disk.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.plain import to_plain
from gpupool.pool.model.state import Act
from gpupool.remoting.daemon.records.numbered_log import FILE_COUNT_MAX, NumberedLog, numbered

NAME = "audit.jsonl"
FILE_SIZE_MAX = 8 << 20
"""64 MiB in all: about 300,000 acts."""

EVERY_S = 0.25
MISSED = "acts-missed"
"""Kind of the line for acts that were dropped before this server could see them."""


class AuditLog(NumberedLog[Act]):
    """Appends the acts that ``record`` is given to the file, in ``run``."""

    def __init__(self, folder: Path, log: logging.Logger) -> None:
        """Find the last act in the file of ``folder``.

        Raises:
            StorageError: when the file cannot be read or cut.
        """
        super().__init__(
            folder / NAME,
            log,
            what="audit",
            lines_of=_lines_after,
            number_of=lambda line: _act_of(line).number,
            size_max=FILE_SIZE_MAX,
            every_s=EVERY_S,
        )


def _lines_after(acts: Sequence[Act], last: int) -> list[str]:
    lines: list[str] = []
    for act in acts:
        if act.number > last + 1:
            what = f"acts {last + 1} to {act.number - 1} were dropped before this server saw them"
            lines.append(_line(Act(last, act.index, act.at, MISSED, "the pool", "", what)))
        lines.append(_line(act))
        last = act.number
    return lines


def read_acts(folder: Path) -> list[Act]:
    """Return every act that the server of ``folder`` has written, oldest first.

    Raises:
        StorageError: when there is no such file, or a line of it is damaged.
    """
    path = folder / NAME
    found: list[Act] = []
    files = [numbered(path, number) for number in reversed(range(FILE_COUNT_MAX))]
    files = [each for each in files if each.exists()]
    if not files:
        raise StorageError(f"there is no audit in {folder}", hint="--state-dir of a server")
    for each in files:
        try:
            text = each.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"cannot read {each}", why=str(error)) from error
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if not line.endswith("\n"):
                break  # being written now, or cut by a power loss
            try:
                found.append(_act_of(line))
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(f"{each} is damaged", why=f"line {number}: {error}") from error
    return found


def act_fields(act: Act) -> dict[str, Any]:
    """Return ``act`` as it stands in the file, and in everything that is exported."""
    return {"schema": 1} | cast("dict[str, Any]", to_plain(act))


def _line(act: Act) -> str:
    return json.dumps(act_fields(act), separators=(",", ":")) + "\n"


def _act_of(line: str) -> Act:
    fields = cast("Mapping[str, Any]", json.loads(line))
    numbers = [int(fields[name]) for name in ("number", "index", "at")]
    texts = [str(fields[name]) for name in ("kind", "by", "subject", "text")]
    return Act(numbers[0], numbers[1], Milliseconds(numbers[2]), *texts)


def lines_of(acts: list[Act]) -> Iterator[str]:
    """Yield each act as one line of JSON."""
    for act in acts:
        yield _line(act)
