"""Generate the shim's exports and the worker's table from the CUDA headers and annotations.py.

Run ``python remoting/driver/generate.py [--check] [--include DIR]``: without ``--check`` it writes
``shim/generated_*`` and ``table.py``; with it, it fails when they differ from what it would write.
Needs a C preprocessor and the headers of the CUDA toolkit; neither is needed to build or to run.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpupool.remoting.driver.annotations import CALLS, HAND, RECORDS

HERE = Path(__file__).resolve().parent
INCLUDE = Path("/usr/local/cuda/include")
PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*;")
TYPEDEF = re.compile(r"PFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz)?\)")
VERSION = re.compile(r"#define CUDA_VERSION (\d+)")
SYMBOL = re.compile(r"(cu\w*?)(?:_v(\d+))?(_ptds|_ptsz)?$")
FIRST_CALL = 64
"""Numbers of generated records start here; those written by hand are below."""

C_TYPES = {
    "size_t": "size_t",
    "CUdeviceptr": "uint64_t",
    "cuuint64_t": "uint64_t",
    "unsigned long long": "unsigned long long",
    "unsigned int": "unsigned int",
    "cuuint32_t": "uint32_t",
    "unsigned short": "unsigned short",
    "unsigned char": "unsigned char",
    "int": "int",
    "float": "float",
    "CUdevice": "int",
}
KINDS = {
    "s": "STREAM",
    "e": "EVENT",
    "g": "GRAPH",
    "x": "GRAPH_EXEC",
    "p": "POOL",
    "f": "FUNCTION",
}


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


def stub(function: Function, number: int, words: list[str]) -> str:
    """Return the C source of one marshalled call."""
    how, tokens = words[0], words[1:]
    name = function.symbol
    if len(tokens) != len(function.parameters):
        raise ValueError(f"{name} has {len(function.parameters)} parameters, not {len(tokens)}")
    declared: list[str] = []
    checks: list[str] = []
    values: list[str] = []
    outputs: list[str] = []
    made = ended = ""
    for at, (word, kind) in enumerate(zip(tokens, function.parameters, strict=True)):
        mark, letter = (word[0], word[1:]) if word[0] in "+!" else ("", word)
        if mark == "+":
            declared.append(f"void **a{at}")
            made = f"GP_{KINDS[letter]}"
            checks.append(f"if (a{at} == NULL) return GP_INVALID_VALUE;")
            checks.append(f"struct gp_handle *made = gp_make({made});")
            checks.append("if (made == NULL) return GP_OUT_OF_MEMORY;")
            values.append("made->id")
            if letter in "se":
                checks.append("made->flags = a1;")
            if name == "cuStreamCreateWithPriority":
                checks.append("made->priority = a2;")
            outputs.append(f"*a{at} = made;")
        elif word == ">":
            ctype = C_TYPES.get(kind.rstrip("* ").strip(), "int")
            declared.append(f"{ctype} *a{at}")
            checks.append(f"if (a{at} == NULL) return GP_INVALID_VALUE;")
            outputs.append(f"memcpy(a{at}, reply, sizeof *a{at});")
        elif letter == "s":
            declared.append(f"void *a{at}")
            checks.append(f"uint64_t v{at};")
            checks.append(f"GP_CHECK(gp_stream_id(a{at}, &v{at}));")
            values.append(f"v{at}")
            ended = f"a{at}" if mark else ended
        elif letter in KINDS:
            declared.append(f"void *a{at}")
            checks.append(f"GP_CHECK(gp_check(a{at}, GP_{KINDS[letter]}));")
            values.append(f"((struct gp_handle *)a{at})->id")
            ended = f"a{at}" if mark else ended
        elif word == "d":
            declared.append("void *a0" if "CUcontext" in kind else f"int a{at}")
            source = f"gp_device_of(a{at})" if "CUcontext" in kind else f"a{at}"
            checks.append(f"int v{at} = {source};")
            checks.append(f"GP_CHECK(gp_check_device(v{at}));")
            values.append(f"gp_server_device(v{at})")
        else:
            ctype = C_TYPES.get(kind, "int")
            declared.append(f"{ctype} a{at}")
            if word == "z":
                checks.append(f"if (a{at} != 0) return GP_INVALID_VALUE;")
            else:
                values.append(f"(uint64_t)a{at}")
    device = "d" in tokens
    lines = [f"GP_EXPORT int {name}({', '.join(declared) or 'void'}) {{"]
    lines.append(f"    GP_ENTER{'_DEVICE' if device else ''}();")
    lines += [f"    {check}" for check in checks]
    count = max(len(values), 1)
    lines.append(f"    uint64_t values[{count}] = {{{', '.join(values) or '0'}}};")
    if how == "sync":
        lines.append("    uint64_t reply[1] = {0};")
        lines.append(
            f"    int status = gp_call({number}, values, {len(values)}, reply, sizeof reply);"
        )
        if made:
            lines.append("    if (status != 0) gp_end(made);")
        lines.append("    if (status != 0) return status;")
    else:
        lines.append(f"    int status = gp_post({number}, values, {len(values)});")
    if ended:
        lines.append(f"    gp_end((struct gp_handle *){ended});")
    lines += [f"    {output}" for output in outputs]
    lines.append("    return status;")
    lines.append("}")
    return "\n".join(lines)


def thread_stub(function: Function, plain: Function) -> str:
    """Return the per-thread default stream variant of an implemented function."""
    declared: list[str] = []
    passed: list[str] = []
    types = plain.parameters
    for at, kind in enumerate(types):
        ctype = "void *" if "*" in kind or kind not in C_TYPES else C_TYPES[kind] + " "
        if (
            kind.startswith("CU")
            and kind not in C_TYPES
            and kind not in HANDLE_TYPES
            and "*" not in kind
        ):
            ctype = "int "
        declared.append(f"{ctype}a{at}")
        passed.append(f"gp_thread_stream(a{at})" if kind == "CUstream" else f"a{at}")
    prototype = ", ".join(d.rsplit("a", 1)[0].strip() for d in declared) or "void"
    return (
        f"int {plain.symbol}({prototype});\n"
        f"GP_EXPORT int {function.symbol}({', '.join(declared) or 'void'}) {{\n"
        f"    return {plain.symbol}({', '.join(passed)});\n}}"
    )


HANDLE_TYPES = {
    *("CUstream", "CUevent", "CUfunction", "CUkernel", "CUmodule", "CUlibrary", "CUcontext"),
    *("CUgraph", "CUgraphExec", "CUgraphNode", "CUmemoryPool", "CUarray", "CUmipmappedArray"),
    *("CUhostFn", "CUstreamCallback", "CUlogsCallback", "CUlogsCallbackHandle", "CUgreenCtx"),
    *("CUoccupancyB2DSize",),
}

BINDINGS = {"cuGraphInstantiateWithFlags": "cuGraphInstantiate"}
"""Functions that cuda.bindings has under another name than the C one without its suffix."""

NOT_BY_STREAM = {"cuLaunchKernelEx", "cuGraphInstantiateWithParams"}
"""Their stream lies inside of a structure, where the shim itself looks at it."""


def notice(comment: str) -> str:
    """Return the first line of a generated file."""
    return f"{comment} Generated by remoting/driver/generate.py; do not edit."


def render(
    functions: dict[str, Function], rows: list[tuple[str, int, int, str]], version: int
) -> dict[str, str]:
    """Return the generated files by their names."""
    numbers = {name: FIRST_CALL + at for at, name in enumerate(CALLS)}
    calls = [notice("//"), '#include "core.h"', ""]
    for name, words in CALLS.items():
        calls += [stub(functions[name], numbers[name], words.split()), ""]
    done = {*CALLS, *HAND}
    unknown = sorted(done - set(functions))
    if unknown:
        raise ValueError(f"not in the headers: {', '.join(unknown)}")
    threads: list[str] = []
    missing: list[str] = []
    for symbol, function in sorted(functions.items()):
        if symbol in done:
            continue
        plain = symbol.removesuffix(function.variant) if function.variant else ""
        if plain in done and functions[plain].parameters == function.parameters:
            if plain in NOT_BY_STREAM:
                threads.append(thread_ex(symbol, plain))
            else:
                threads.append(thread_stub(function, functions[plain]))
        else:
            missing.append(symbol)
    calls += ["\n\n".join(threads), ""]
    exports = [notice("//"), '#include "core.h"', ""]
    exports += [
        f"GP_EXPORT int {symbol}(void) {{ return gp_missing({at}); }}"
        for at, symbol in enumerate(missing)
    ]
    exports += ["", f"const int gp_missing_count = {len(missing)};"]
    exports += ["const char *const gp_missing_names[] = {"]
    exports += [f'    "{symbol}",' for symbol in missing] + ["};", ""]
    exports += [f"unsigned long gp_missing_calls[{len(missing)}];", ""]
    in_calls = {*done, *(set(functions) - set(missing))}
    exports += [f"int {symbol}();" for symbol in sorted({r[3] for r in rows} & in_calls)]
    exports += ["", "const struct gp_symbol gp_symbols[] = {"]
    for name, value, thread, symbol in rows:
        there = int(symbol not in missing)
        exports.append(f'    {{"{name}", {value}, {thread}, {there}, (void (*)(void)){symbol}}},')
    exports += ["};", f"const int gp_symbol_count = {len(rows)};", ""]
    records = [notice("//"), "#ifndef GP_RECORDS_H", "#define GP_RECORDS_H", ""]
    records += [f"#define GP_{name} {at + 1}" for at, name in enumerate(RECORDS)]
    records += [f"#define GP_CUDA_HEADER_VERSION {version}", "", "#endif", ""]
    table = [
        '"""The numbers and parameters of the records. Generated by generate.py; do not edit."""',
        "",
    ]
    table += [f"{name} = {at + 1}" for at, name in enumerate(RECORDS)]
    table += ["", "CALLS: dict[int, tuple[str, str, bool]] = {"]
    for name, words in CALLS.items():
        how, *tokens = words.split()
        sent = " ".join(token for token in tokens if token not in (">", "z"))
        base = BINDINGS.get(name, functions[name].base)
        row = f'    {numbers[name]}: ("{base}", "{sent}", {how == "sync"}),'
        table.append(row)
    table += [
        "}",
        '"""Function, parameters as annotated, whether the client waits for a reply."""',
        "",
    ]
    return {
        "shim/generated_calls.c": "\n".join(calls),
        "shim/generated_exports.c": "\n".join(exports),
        "shim/generated_records.h": "\n".join(records),
        "table.py": "\n".join(table),
    }


def thread_ex(symbol: str, plain: str) -> str:
    """Return a per-thread variant whose stream lies in a structure."""
    count = {"cuLaunchKernelEx": 4, "cuGraphInstantiateWithParams": 3}[plain]
    types = ", ".join("void *" for _ in range(count))
    named = ", ".join(f"void *a{at}" for at in range(count))
    passed = ", ".join(f"a{at}" for at in range(count))
    return (
        f"int {plain}({types});\nGP_EXPORT int {symbol}({named}) {{\n"
        f"    gp_per_thread(1);\n    int status = {plain}({passed});\n    gp_per_thread(0);\n"
        f"    return status;\n}}"
    )


def main() -> int:
    """Write the generated files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--include", type=Path, default=INCLUDE)
    options = parser.parse_args()
    header = (options.include / "cuda.h").read_text()
    found = VERSION.search(header)
    assert found is not None
    functions = parse_functions(preprocess(options.include))
    typedefs = (options.include / "cudaTypedefs.h").read_text()
    typedefs += (options.include / "cudaProfilerTypedefs.h").read_text()
    rows = lookup_rows(functions, parse_versions(typedefs))
    stale = 0
    for name, text in render(functions, rows, int(found[1])).items():
        path = HERE / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                print(f"{path} is not what the generator writes", file=sys.stderr)  # noqa: T201
                stale = 1
        else:
            path.write_text(text)
    if not options.check:
        missing = len(functions) - len(CALLS) - len(HAND)
        print(f"{len(functions)} functions, {len(rows)} look-ups, about {missing} not by hand")  # noqa: T201
    return stale


if __name__ == "__main__":
    sys.exit(main())
