"""Files of recorded bytes: wire and disk data of commit 70ed747, one entry a name.

An entry is a line with a name, followed by its bytes in hex, indented, or by its text behind a
``|``. Names are those of the wire: the number of a message, the name of a command. Names of classes
and modules may change; what stands in these files may not, unless a format is changed on purpose.

With ``GPUPOOL_REWRITE=1`` in the environment, what is encoded now is written into the files, as
for the other records in ``tests/testdata``. Do that only to add what is new, and look at the
difference: a line that is not an addition breaks what runs or lies on disks already.
"""

import os
from collections.abc import Mapping
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "testdata" / "golden"
HEX_WIDTH = 92
HEAD = "# Bytes of commit 70ed747; see tests/golden/recorded.py. Additions only.\n"


def is_rewriting() -> bool:
    """Return whether the found bytes are to be recorded."""
    return bool(os.environ.get("GPUPOOL_REWRITE"))


def read(name: str) -> dict[str, bytes]:
    """Return the entries of one file, in their order."""
    entries: dict[str, bytes] = {}
    at = ""
    for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("    | "):
            entries[at] += line[6:].encode() + b"\n"
        elif line.startswith("    "):
            entries[at] += bytes.fromhex(line)
        elif line and not line.startswith("#"):
            assert line not in entries, f"{name} has two entries {line}"
            at, entries[line] = line, b""
    return entries


def write(name: str, entries: Mapping[str, bytes]) -> None:
    """Record entries."""
    lines = [HEAD]
    for each, data in entries.items():
        lines.append(f"{each}\n")
        text = as_text(data)
        if text is not None:
            lines += [f"    | {line}\n" for line in text.splitlines()]
        else:
            digits = data.hex()
            cuts = range(0, len(digits), HEX_WIDTH)
            lines += [f"    {digits[at : at + HEX_WIDTH]}\n" for at in cuts]
    (GOLDEN / name).write_text("".join(lines), encoding="utf-8")


def as_text(data: bytes) -> str | None:
    """Return ``data`` as text when it is lines of printable ASCII; None for all else."""
    if not data.endswith(b"\n"):
        return None
    inner = data.replace(b"\n", b"")
    return data.decode() if inner.isascii() and inner.decode().isprintable() else None


def check(name: str, found: Mapping[str, bytes]) -> dict[str, bytes]:
    """Compare ``found`` with the file, and return the recorded entries."""
    if is_rewriting():
        write(name, found)
    recorded = read(name)
    missing = [each for each in found if each not in recorded]
    assert not missing, f"not recorded in {name}: {missing}; see tests/golden/recorded.py"
    gone = [each for each in recorded if each not in found]
    assert not gone, f"recorded in {name}, and not there any more: {gone}"
    changed = [each for each in found if found[each] != recorded[each]]
    where = changed[0] if changed else ""
    assert not changed, (
        f"{len(changed)} entries of {name} have other bytes now, first {where}:\n"
        f"  recorded {recorded[where]!r}\n  found    {found[where]!r}"
    )
    return recorded
