"""Write exports.inc: the exported names of libcuda.so.1, and cuGetProcAddress's answers for them.

Run by hand when the CUDA headers move on: `python generate_exports.py <include folder>` (the folder
with cuda.h and cudaTypedefs.h, for instance nvidia/cu13/include of the nvidia-cuda-runtime wheel).
Only names and numbers are taken from the headers; CI needs the written file, never the headers.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Declared in cudaProfiler.h, which the wheels leave out; version 4000 by cudaProfilerTypedefs.h.
PROFILER: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"), ()
)
PROFILER_VERSION = 4000
SUFFIX = re.compile(r"(_v\d+)?(_ptds|_ptsz)?$")


def preprocess(header: Path) -> str:
    command = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-I", str(header.parent)]
    return subprocess.run(
        [*command, str(header)], check=True, capture_output=True, text=True
    ).stdout


def normalise(parameters: str) -> tuple[str, ...]:
    """Give the types of a parameter list without the names, so that prototypes compare."""
    types: list[str] = []
    for parameter in parameters.split(","):
        text = re.sub(r"\s+", " ", parameter.replace("*", " * ")).strip()
        words = text.split(" ")
        if len(words) > 1 and words[-1] not in {"*", "int", "long", "char", "void"}:
            words.pop()
        types.append(" ".join(words).replace("CUdevice_v1", "CUdevice"))
    return tuple(re.sub(r"_v2\b", "", one) for one in types)


def split(symbol: str) -> tuple[str, int, bool]:
    """Split a symbol into its base name, its suffix's number, and whether it is per-thread."""
    match = SUFFIX.search(symbol)
    assert match is not None
    number, thread = match.groups()
    return symbol[: match.start()], int(number[2:]) if number else 1, thread is not None


def exported(text: str) -> dict[str, tuple[str, ...]]:
    found = re.findall(r"CUresult\s+(cu[A-Z]\w*)\s*\(([^;{]*)\)\s*;", text)
    return {name: normalise(parameters) for name, parameters in found}


def requested(text: str) -> dict[tuple[str, bool], list[tuple[int, tuple[str, ...]]]]:
    """Give, for each base name and kind of default stream, its versions with their prototypes."""
    table: dict[tuple[str, bool], list[tuple[int, tuple[str, ...]]]] = {}
    pattern = r"\(\s*\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz)?\s*\)\s*\(([^;]*)\)\s*;"
    for name, version, thread, parameters in re.findall(pattern, text):
        table.setdefault((name, bool(thread)), []).append((int(version), normalise(parameters)))
    return {key: sorted(versions) for key, versions in table.items()}


def pair(
    versions: list[tuple[int, tuple[str, ...]]], symbols: list[tuple[str, tuple[str, ...]]]
) -> list[tuple[int, str]]:
    """Give each version its symbol: in order, or by prototype where their numbers differ."""
    if len(versions) == len(symbols):
        in_order = zip(versions, symbols, strict=True)
        return [(version, symbol) for (version, _), (symbol, _) in in_order]
    pairs: list[tuple[int, str]] = []
    for version, prototype in versions:
        same = [symbol for symbol, other in symbols if other == prototype]
        if same:
            pairs.append((version, same[0]))
            continue
        print(f"no symbol for version {version} of {symbols}", file=sys.stderr)
    return pairs


def main(folder: Path) -> None:
    symbols = {**exported(preprocess(folder / "cuda.h")), **PROFILER}
    symbols.setdefault("cuGetProcAddress", ())
    groups: dict[tuple[str, bool], list[tuple[str, tuple[str, ...]]]] = {}
    for symbol in sorted(symbols, key=lambda one: split(one)[1]):
        base, _, thread = split(symbol)
        groups.setdefault((base, thread), []).append((symbol, symbols[symbol]))
    typedefs = preprocess(folder / "cudaTypedefs.h")
    rows: list[tuple[str, int, int, str]] = []
    wanted = requested(typedefs)
    wanted |= {(name, False): [(PROFILER_VERSION, ())] for name in PROFILER}
    for (base, thread), versions in wanted.items():
        for version, symbol in pair(versions, groups.get((base, thread), [])):
            rows.append((base, int(thread), version, symbol))
    errors = re.findall(
        r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)", preprocess(folder / "cuda.h")
    )
    lines = ["/* Written by generate_exports.py from the CUDA headers; do not edit. */"]
    lines += ["#ifdef EXPORT", *(f"EXPORT({symbol})" for symbol in sorted(symbols)), "#endif"]
    lines += ["#ifdef PROC"]
    lines += [
        f'PROC("{base}", {thread}, {version}, {name})'
        for base, thread, version, name in sorted(rows)
    ]
    lines += ["#endif", "#ifdef ERROR_NAME"]
    lines += [f"ERROR_NAME({name}, {value})" for name, value in errors]
    (HERE / "exports.inc").write_text("\n".join([*lines, "#endif", ""]), encoding="ascii")
    print(f"{len(symbols)} symbols, {len(rows)} versions, {len(errors)} errors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
