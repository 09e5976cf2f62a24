"""Fuzz the inputs of the shim, NVML and the worker's C library, under AddressSanitizer and UBSan.

    python tests/fuzz/fuzz.py [--runs N] [--only TARGET] [--folder FOLDER]

Builds each target with clang's libFuzzer. It begins with the seeds of ``seeds.py`` and the inputs
that were found before (``found/TARGET``), and divides ``N`` executions between the targets. The
first input that a sanitizer or an ``abort`` of a target does not like ends it and stays there.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import seeds  # noqa: E402
from tests import objects as objects_cache  # noqa: E402

DOOR = HERE.parents[1] / "remoting" / "driver_api"
SHIM = DOOR / "shim"
NATIVE = DOOR / "native"
HEADERS = (SHIM / "include", SHIM, NATIVE, HERE)
CHECKS = "undefined,float-cast-overflow,float-divide-by-zero"
FLAGS = (
    *("-std=gnu11", "-fno-omit-frame-pointer", *(f"-I{folder}" for folder in HEADERS)),
    f"-fno-sanitize-recover={CHECKS}",
)
SILENT = ("gp_start_thread", "gp_say")
"""Functions of the shim that its targets replace."""
ROW = "| {} | {} | {} | {} | {} |"
"""Row of the printed table; features are the coverage count of libFuzzer."""


@dataclass(frozen=True, slots=True)
class Target:
    """One program: its file, the library's files that it leaves out, and its share of the runs."""

    name: str
    share: float
    length: int  # of an input, at most
    without: tuple[str, ...] = ()  # of the folder, which the target has in its own place
    folder: Path | None = SHIM
    wraps: tuple[str, ...] = SILENT  # functions that the target has in place of others

    def sources(self) -> list[Path]:
        """Return the files that it is made of."""
        own = [HERE / f"{self.name}_target.c"]
        if self.folder is None:
            return [*own, SHIM / "base" / "json.c"]
        if self.wraps == SILENT:
            own.append(HERE / "silent.c")
        files = sorted(self.folder.rglob("*.c"))
        return own + [path for path in files if path.name not in self.without]


CONDITIONS = ("pthread_cond_wait", "pthread_cond_timedwait")
TARGETS = (
    Target("json", 0.05, 600, folder=None, wraps=()),
    Target("nvml", 0.05, 2000, folder=None, wraps=()),
    Target("agent", 0.1, 2000, ("tls.c", "link.c")),
    Target("answers", 0.15, 2000, ("tls.c",)),
    Target("hello", 0.1, 8000, ("tls.c", "snapshot.c")),
    Target("calls", 0.1, 1000, ("tls.c", "link.c")),
    Target("order", 0.05, 200, ("tls.c",)),
    Target("lanes", 0.1, 600, folder=None, wraps=CONDITIONS),
    Target("line", 0.15, 600, folder=None, wraps=CONDITIONS),
    Target(
        *("launcher", 0.15, 2000, ("turns.c", "lanes.c", "line_tls.c", "start.c"), NATIVE),
        wraps=("clock_gettime", "poll"),
    ),
)


def clang() -> str | None:
    """Return the compiler that has libFuzzer, if the machine has one."""
    names = ("clang", *(f"clang-{version}" for version in range(25, 13, -1)))
    return next((found for name in names if (found := shutil.which(name))), None)


def build(target: Target, folder: Path, compiler: str, kind: str) -> Path:
    """Compile a target; ``kind`` stands before the sanitizers, such as ``fuzzer``.

    The files of the library are compiled once for all targets that have the same folder.
    """
    made = folder / target.name
    sanitize = f"-fsanitize={kind + ',' if kind else ''}address,{CHECKS}"
    level = ("-O1", "-g") if kind else ("-O0", "-g1")  # quick to compile where it only repeats
    alone = [] if kind else [HERE / "alone.c"]
    objects: list[str] = []
    for source in (*target.sources(), *alone):
        object_file = folder / f"{source.parent.name}-{source.stem}.o"
        if not object_file.exists():
            words = [compiler, *FLAGS, *level, sanitize, "-c"]
            if kind or source.name.endswith("_target.c"):  # targets include files of the library
                subprocess.run([*words, "-o", str(object_file), str(source)], check=True)
            else:
                objects_cache.compiled(words, source, object_file, (*HEADERS, source.parent))
        objects.append(str(object_file))
    link = [f"-Wl,--wrap={name}" for name in target.wraps]
    command = [compiler, sanitize, *link, "-o", str(made), *objects, "-pthread", "-ldl"]
    subprocess.run(command, check=True)
    return made


def corpus_of(target: Target, folder: Path) -> Path:
    """Write the seeds of a target, and its earlier findings, into a separate folder."""
    corpus = folder / f"{target.name}-corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds.of(target.name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    found = HERE / "found" / target.name
    for path in sorted(found.glob("*")) if found.exists() else ():
        shutil.copy(path, corpus)
    return corpus


def fuzz(target: Target, folder: Path, compiler: str, runs: int) -> int:
    """Run one target; return its exit status."""
    made = build(target, folder, compiler, "fuzzer")
    options = (
        *(f"-runs={runs}", f"-max_len={target.length}", "-timeout=10", "-rss_limit_mb=2048"),
        *("-print_final_stats=1", "-verbosity=1", "-detect_leaks=0", "-close_fd_mask=1"),
        f"-artifact_prefix={folder}/{target.name}-",
    )
    environment = {"PATH": os.environ["PATH"], "UBSAN_OPTIONS": "print_stacktrace=1"}
    environment["ASAN_OPTIONS"] = (
        "detect_leaks=0"  # also at the end: the library keeps what it made
    )
    command = [str(made), *options, str(corpus_of(target, folder))]
    began = time.monotonic()
    with (folder / f"{target.name}.log").open("wb") as log:
        done = subprocess.run(command, env=environment, stderr=log, check=False, cwd=folder)
    seconds = time.monotonic() - began
    text = (folder / f"{target.name}.log").read_text(errors="replace")
    executed = re.search(r"stat::number_of_executed_units: *(\d+)", text)
    features = re.findall(r" ft: (\d+)", text) or ["0"]
    count = int(executed[1]) if executed else 0
    crashes = len(list(folder.glob(f"{target.name}-*-*")))
    print(
        ROW.format(target.name, f"{count:,}", f"{seconds:.0f}", features[-1], crashes), flush=True
    )
    if done.returncode:
        print(text[-6000:], flush=True)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--only", choices=[target.name for target in TARGETS])
    parser.add_argument("--folder", type=Path, help="for logs and inputs; a new one otherwise")
    options = parser.parse_args()
    compiler = clang()
    if compiler is None:
        sys.exit("no clang: its libFuzzer is needed (Debian: apt-get install clang)")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="gpupool-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    print(ROW.format("target", "executions", "seconds", "features", "crashes"))
    print(ROW.format(*["---"] * 5), flush=True)
    for target in TARGETS:
        if options.only in (None, target.name):
            share = 1.0 if options.only else target.share
            failed |= fuzz(target, folder, compiler, round(options.runs * share))
    if failed:
        sys.exit(f"what was found is in {folder}")


if __name__ == "__main__":
    main()
