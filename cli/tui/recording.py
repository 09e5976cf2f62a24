"""Recordings of the live view, for reports of bugs: JSON lines, compressed with gzip.

The first line says what it is. Each other one has the seconds since the beginning, and what came
then: an update of the pool, or points that the sparklines began with. Texts of users are in it.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

from gpupool.cli.tui.collector import Collector
from gpupool.pool.errors import StorageError, UsageError
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.client.subscription import PoolUpdate

FORMAT = 1
LINE_MAX = 64 << 20
"""Characters: the view of 1,000 servers has about four million."""


@dataclass(slots=True)
class Recorder:
    """Writes what a live view gets to a file, as it comes."""

    path: Path
    version: str
    _file: TextIO | None = None
    _view: PoolView | None = None
    _told: dict[ServerId, Telemetry] = field(default_factory=dict[ServerId, Telemetry])
    _began: float = 0.0

    def open(self, now: float) -> None:
        """Begin the file.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            self._file = gzip.open(self.path, "wt", encoding="utf-8", compresslevel=5)  # noqa: SIM115
        except OSError as error:
            raise _not_written(self.path, error) from error
        self._began = now
        self._write({"gpupool_top": FORMAT, "version": self.version})

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise _not_written(self.path, error) from error

    def update(self, update: PoolUpdate, ping_s: dict[ServerId, float], now: float) -> None:
        """Write one update of a subscription: what is as it was is left out."""
        line: dict[str, Any] = {"t": round(now - self._began, 3), "age": round(update.age_s, 3)}
        line |= {"connected": update.connected, "ping": ping_s}
        if update.view is not self._view:
            line["view"], self._view = encode(update.view), update.view
        new = [each for s, each in update.telemetry.items() if each is not self._told.get(s)]
        line["telemetry"] = [encode(each) for each in new]
        self._told = dict(update.telemetry)
        self._write(line)

    def gpu_points(self, server: ServerId, figure: str, points: dict[GpuId, Any]) -> None:
        """Write what the sparklines of one server begin with."""
        self._write({"server": server, "figure": figure, "points": points})

    def pool_points(self, points: dict[str, Any]) -> None:
        """Write what the line of the pool begins with."""
        self._write({"pool": points})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            json.dump(line, self._file, separators=(",", ":"))
            self._file.write("\n")
        except OSError as error:
            raise _not_written(self.path, error) from error


def _not_written(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write {path}", why=(error.strerror or str(error)).lower())


class Recording:
    """A file that was recorded, read line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._view: PoolView | None = None
        self._telemetry: dict[ServerId, Telemetry] = {}

    def lines(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Return each line with its seconds; one that lacks them comes at once.

        A file of a view that was killed ends where it was written to.

        Raises:
            UsageError: it is no recording, or a damaged one.
            StorageError: it cannot be read.
        """
        try:
            with gzip.open(self.path, "rt", encoding="utf-8") as file:
                first = self._parsed(file.readline(LINE_MAX))
                if first.get("gpupool_top") != FORMAT:
                    raise self._refused("it is no recording of this version")
                at = 0.0
                while text := file.readline(LINE_MAX):
                    if not text.endswith("\n"):
                        return
                    line = self._parsed(text)
                    at = max(at, float(line.get("t", at)))
                    yield at, line
        except EOFError:
            return
        except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError, TypeError, ValueError) as error:
            raise self._refused(str(error)) from error
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise StorageError(f"cannot read {self.path}", why=why) from error

    def play(self, line: dict[str, Any], collector: Collector, now: float) -> None:
        """Give a collector what one line has.

        Raises:
            UsageError: the line makes no sense.
        """
        try:
            if "pool" in line:
                for name, points in line["pool"].items():
                    collector.trends.pool.fill(name, _points(points))
            elif "server" in line:
                server = ServerId(line["server"])
                collector.trends.follow(server)
                for gpu, points in line["points"].items():
                    collector.trends.restore(server, GpuId(gpu), line["figure"], _points(points))
            else:
                self._play_update(line, collector, now)
        except (CodecError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._refused(str(error)) from error

    def _play_update(self, line: dict[str, Any], collector: Collector, now: float) -> None:
        if "view" in line:
            self._view = decode(PoolView, line["view"], unknown_fields=True)
        for each in line["telemetry"]:
            telemetry = decode(Telemetry, each, unknown_fields=True)
            self._telemetry[telemetry.server] = telemetry
        if self._view is None:
            raise ValueError("it begins without a view")
        for server, seconds in line["ping"].items():
            collector.ping_s[ServerId(server)] = float(seconds)
        connected = tuple(ServerId(each) for each in line["connected"])
        update = PoolUpdate(self._view, dict(self._telemetry), float(line["age"]), connected)
        collector.take(update, now)

    def _parsed(self, text: str) -> dict[str, Any]:
        parsed = _harmless(json.loads(text))
        if not isinstance(parsed, dict):
            raise self._refused("a line is no object")
        return cast("dict[str, Any]", parsed)

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"cannot replay {self.path}", why=visible(why))


def _points(points: list[list[float]]) -> list[tuple[int, float]]:
    return [(int(t), float(value)) for t, value in points]


def _harmless(value: Any) -> Any:
    """Return a value without characters that a terminal would obey: a file may be anybody's."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_harmless(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {visible(key): _harmless(each) for key, each in items}
    return value
