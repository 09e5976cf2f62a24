"""The expected failures of CuPy's tests, each with a reason.

The record has a line for each test that fails, or for a family of them: the reason, and the name.
A failure that the record lacks gets the reason that its message shows, and a person decides on the
others.
"""

import json
import lzma
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "testdata" / "cupy-suite.txt.xz"
INTERNALS = "internals of CuPy"
COMPILER = "needs a kernel compiler"
EMULATION = "emulation refuses"
DECIDED = "decided otherwise"
LEFT = "left to CuPy"
OTHER = "not yet"
REASONS = (INTERNALS, COMPILER, EMULATION, DECIDED, LEFT, OTHER)

SIGNS: tuple[tuple[str, str], ...] = (
    (r"internals of CuPy|cupy_backends|'Anything'|suite_shims", INTERNALS),
    (r"has no attribute '_[a-z]", INTERNALS),
    (r"gpupool run --door cuda", LEFT),
    (r"emulated GPU", EMULATION),
    (r"compil|nvcc|nvrtc", COMPILER),
)
"""Reasons that a message shows; the first match counts."""
_FOLDER = re.compile(r"cupyx?_tests/(scipy_tests/)?\w+(?=/)")
_PARAMETERS = re.compile(r"_param_\d+_\{.*?\}(?=::|$)|\[.*\]$")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test's outcome: passed, failed or skipped, with its error."""

    test: str
    outcome: str
    error: str = ""

    @property
    def folder(self) -> str:
        """Return the folder of the test, below CuPy's `tests`."""
        found = _FOLDER.match(self.test)
        return found[0] if found else self.test.partition("::")[0]

    @property
    def family(self) -> str:
        """Return the test's name without its parameters, as a pattern."""
        return _PARAMETERS.sub("", self.test) + "*"


def read_outcomes(path: Path) -> list[Outcome]:
    """Read a run's lines; the last line of a test counts."""
    found: dict[str, Outcome] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        test = _ADDRESS.sub("0x", fields["id"])
        error = f"{fields['type']}: {fields['error']}" if fields["type"] else fields["error"]
        found[test] = Outcome(test, fields["outcome"], error)
    return list(found.values())


def expected_reason(expected: dict[str, str], outcome: Outcome) -> str | None:
    """Return why a test is expected to fail; None if it is not."""
    return expected.get(outcome.test) or expected.get(outcome.family)


def reason_of(expected: dict[str, str], outcome: Outcome) -> str:
    """Return why a test fails: as the record says, or its message."""
    shown = (reason for sign, reason in SIGNS if re.search(sign, outcome.error))
    return expected_reason(expected, outcome) or next(shown, OTHER)


def patterns(outcomes: list[Outcome], expected: dict[str, str]) -> dict[str, str]:
    """Return the lines of a record: a family's pattern where all of it fails for one reason."""
    families: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.outcome != "skipped":
            families.setdefault(outcome.family, []).append(outcome)
    found: dict[str, str] = {}
    for family, members in families.items():
        failed = {
            each.test: reason_of(expected, each) for each in members if each.outcome == "failed"
        }
        reasons = set(failed.values())
        if len(reasons) == 1 and len(failed) == len(members):
            found[family] = reasons.pop()
        else:
            found.update(failed)
    return found


def write_record(expected: dict[str, str], path: Path = RECORD) -> None:
    """Write the list, compressed: it has many lines that differ little."""
    text = "".join(f"{reason}\t{test}\n" for test, reason in sorted(expected.items()))
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read_record(path: Path = RECORD) -> dict[str, str]:
    """Read the list: reasons by the names of tests and by the patterns of families."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return {test: reason for reason, _, test in (line.partition("\t") for line in lines)}


def without(expected: dict[str, str], folders: Sequence[str]) -> dict[str, str]:
    """Return the list without the tests of some folders or files."""
    return {test: why for test, why in expected.items() if not test.startswith(tuple(folders))}


def table(outcomes: list[Outcome], expected: dict[str, str]) -> list[str]:
    """Return a Markdown table of the folders: passed, failed, known by reason, new, and mended."""
    heads = ["folder", "passed", "failed", "rate", *REASONS, "new", "now pass", "skipped"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        rows = (counts.setdefault(outcome.folder, Counter()), counts.setdefault("~", Counter()))
        reason = expected_reason(expected, outcome)
        for row in rows:
            row[outcome.outcome] += 1
            if outcome.outcome == "failed":
                row[reason or "new"] += 1
            elif outcome.outcome == "passed" and reason is not None:
                row["now pass"] += 1
    for folder, row in sorted(counts.items()):
        judged = row["passed"] + row["failed"]
        cells = [folder.replace("~", "**all**"), f"{row['passed']:,}", f"{row['failed']:,}"]
        cells.append(f"{row['passed'] / max(judged, 1):.1%}")
        cells += [f"{row[name]:,}" for name in (*REASONS, "new", "now pass", "skipped")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def without_internals(outcomes: list[Outcome], expected: dict[str, str]) -> float:
    """Return the share of tests that pass, of those that are not tests of internals."""
    passed = sum(each.outcome == "passed" for each in outcomes)
    failed = [each for each in outcomes if each.outcome == "failed"]
    others = sum(expected_reason(expected, each) != INTERNALS for each in failed)
    return passed / max(passed + others, 1)
