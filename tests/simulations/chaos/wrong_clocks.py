"""Wall clocks that are wrong, in real processes: a file for each server says by how much.

Python imports ``sitecustomize`` at its start; the one that is written here adds the error to the
process's wall clock. ``libfaketime`` does the same from outside, and makes timed waits of threads
fail at times.
"""

import os
from pathlib import Path

_CUSTOMIZE = """
import os, time
_right_ns, _monotonic = time.time_ns, time.monotonic
_error_ns, _read_at = 0, -1.0

def _wrong_ns():
    global _error_ns, _read_at
    now = _monotonic()
    if now - _read_at > 0.05:
        _read_at = now
        try:
            with open(os.environ["WRONG_CLOCK_FILE"]) as file:
                _error_ns = int(float(file.read()) * 1e9)
        except OSError:
            pass  # a confined process: it has the error of its start
    return _right_ns() + _error_ns

if "WRONG_CLOCK_FILE" in os.environ:
    time.time_ns = _wrong_ns
    time.time = lambda: _wrong_ns() / 1e9
"""


class WrongClocks:
    """The errors of all servers' wall clocks."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in ``folder``, which is made."""
        folder.mkdir(mode=0o711, exist_ok=True)
        (folder / "sitecustomize.py").write_text(_CUSTOMIZE, encoding="utf-8")
        self._folder = folder

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables with which a server's process has the clock ``name``."""
        if not self._file(name).exists():
            self.set(name, 0.0)
        path = os.pathsep.join(filter(None, (str(self._folder), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "WRONG_CLOCK_FILE": str(self._file(name))}

    def set(self, name: str, error_s: float) -> None:
        """Let a clock be ``error_s`` seconds ahead of the right one, from now on."""
        new = self._folder / f"{name}.new"
        new.write_text(str(error_s), encoding="ascii")
        os.replace(new, self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.error"
