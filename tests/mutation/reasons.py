"""Reasons: mutants that change nothing a program can see, each with why.

The file has two lines for each: the mutant's key, and, indented, the reason.
"""

from pathlib import Path

FILE = Path(__file__).with_name("equivalent.txt")


def load_reasons(file: Path = FILE) -> dict[str, str]:
    """Return the reason of each mutant that is known to be equivalent, by its key."""
    reasons: dict[str, str] = {}
    key = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(" "):
            if not key:
                raise ValueError(f"a reason without a mutant: {line.strip()}")
            reasons[key], key = line.strip(), ""
        elif key:
            raise ValueError(f"a mutant without a reason: {key}")
        else:
            key = line
    if key:
        raise ValueError(f"a mutant without a reason: {key}")
    return reasons
