"""The functions that CUDA's headers declare, and the versions that cudaTypedefs.h gives them.

The parser needs a C preprocessor, and no compiler. ``generate.py`` turns the functions into C.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*;")
TYPEDEF = re.compile(r"PFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz)?\)")
SYMBOL = re.compile(r"(cu\w*?)(?:_v(\d+))?(_ptds|_ptsz)?$")


@dataclass(frozen=True)
class Function:
    """One exported function of the driver API."""

    symbol: str
    parameters: tuple[str, ...]  # the C types, without names

    @property
    def base(self) -> str:
        """The name that cuGetProcAddress is asked for."""
        match = SYMBOL.match(self.symbol)
        assert match is not None
        return match[1]

    @property
    def variant(self) -> str:
        """``_ptds``, ``_ptsz`` or nothing."""
        match = SYMBOL.match(self.symbol)
        assert match is not None
        return match[3] or ""

    @property
    def generation(self) -> int:
        """1 for the first binary interface of a name, 2 for ``_v2`` and so on."""
        match = SYMBOL.match(self.symbol)
        assert match is not None
        return int(match[2] or 1)


def preprocess(include: Path) -> str:
    """Return cuda.h and the profiler's header with every version of every function visible."""
    done = subprocess.run(
        ["cc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", f"-I{include}", "-"],
        input="#include <cuda.h>\n#include <cudaProfiler.h>\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def parse_functions(text: str) -> dict[str, Function]:
    """Return every function that the preprocessed headers declare."""
    found: dict[str, Function] = {}
    for symbol, parameters in PROTOTYPE.findall(text):
        types = tuple(parameter_type(part) for part in split_parameters(parameters))
        found.setdefault(symbol, Function(symbol, types))
    return found


def split_parameters(text: str) -> list[str]:
    """Split a parameter list at its outermost commas."""
    parts, depth, start = list[str](), 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def parameter_type(text: str) -> str:
    """Return the type of a parameter declaration: ``size_t *`` for ``const size_t *bytes``."""
    text = re.sub(r"\bconst\b", "", text)
    match = re.fullmatch(r"\s*(.*?)(\w+)\s*(\[\w*\])?\s*", " ".join(text.split()))
    assert match is not None, text
    return (match[1] + ("*" if match[3] else "")).strip()


def parse_versions(text: str) -> dict[tuple[str, str], list[int]]:
    """Return the versions of cudaTypedefs.h by base name and variant, ascending."""
    found: dict[tuple[str, str], set[int]] = {}
    for name, version, variant in TYPEDEF.findall(text):
        found.setdefault((name, variant), set()).add(int(version))
    return {key: sorted(values) for key, values in found.items()}


def lookup_rows(
    functions: dict[str, Function], versions: dict[tuple[str, str], list[int]]
) -> list[tuple[str, int, int, str]]:
    """Return (name, version, per-thread, symbol), sorted: the table of cuGetProcAddress.

    The binary interfaces of a name pair with its versions in order; the test suite checks that
    the counts agree.
    """
    symbols: dict[tuple[str, str], list[Function]] = {}
    for function in functions.values():
        symbols.setdefault((function.base, function.variant), []).append(function)
    rows: list[tuple[str, int, int, str]] = []
    for key, values in sorted(versions.items()):
        candidates = sorted(symbols.get(key, []), key=lambda f: f.generation)
        if not candidates:
            continue
        # A name whose first interfaces are gone from the header keeps its last ones.
        for version, function in zip(values[::-1], candidates[::-1], strict=False):
            rows.append((key[0], version, int(bool(key[1])), function.symbol))
    return sorted(rows)
