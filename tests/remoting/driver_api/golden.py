"""The bytes of every record, as the library sent them when they were written down.

    python tests/remoting/driver_api/golden.py --write

runs the programs of ``RUNS`` a few times behind the door, with a tap on the line to the worker, and
writes samples of their records to ``tests/testdata/golden``. Words that differ from run to run are
masked there. ``test_golden_records.py`` compares what the same programs send later.
"""

import argparse
import hashlib
import shutil
import struct
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from fake_cuda.control import Control
from test_cuda_door import HERE, KERNELS, ROOT, compiled, in_one_process, run

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor.reader import FRAME_MAGIC, records_of
from gpupool.remoting.driver_api.schema.layout import FRAME
from gpupool.remoting.driver_api.schema.layout import HEADER as RECORD
from gpupool.remoting.driver_api.schema.table import NAMES

FOLDER = ROOT / "tests" / "testdata" / "golden" / "cuda"
IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")
MEMORY_IMAGE = str(KERNELS / "memory_kernels.sm_90.cubin")

NUMBERS = {name: op for op, name in NAMES.items()}

REPETITIONS = 4
"""Runs of each program, to find the words that are the same in all."""

SAMPLES_MAX = 3
"""Samples of one record that a run gives at most, of different sizes or kinds."""

SIZE_MAX = 640
"""Bytes of a sample, unless the record has no smaller one."""

WORD = 8
MASKED = "." * 2 * WORD


@dataclass(frozen=True, slots=True)
class Run:
    """A program behind the door, and its needs there."""

    name: str
    program: str
    words: tuple[str, ...] = ()
    devices: int = 1
    options: tuple[str, ...] = ()
    sharing: bool = False
    known: bool = False  # the server has the image already
    keeps: bool = False  # the library keeps freed memory: addresses come again by the clock


RUNS = (
    Run("records", "records", ("main", IMAGE)),
    Run("sharing", "records", ("share", IMAGE), sharing=True),
    Run("across", "records", ("across", IMAGE), options=("--servers", "2", "--links")),
    Run("everything", "everything", (IMAGE,), options=("--old",), known=True),
    Run("graphs", "graphs", (IMAGE,)),
    Run("captures", "captures", (IMAGE,)),
    Run("pools", "pools", devices=2),
    Run("values", "values", devices=2),
    Run("arrays", "arrays", (MEMORY_IMAGE,)),
    Run("virtual", "virtual"),
    Run("managed", "managed", (IMAGE, MEMORY_IMAGE), devices=2),
    Run("references", "references", (str(KERNELS / "reference_kernels.ptx"),)),
    Run("green", "green", (IMAGE,)),
    Run("linker", "linker", ("test_kernels.ptx", "texts")),
    Run("legacy", "legacy", (IMAGE,), devices=2),
    Run("queries", "queries", devices=2),
    Run("tensors", "tensors"),
    Run("times", "times", (IMAGE,)),
    Run("collectives", "collectives"),
    Run("host_copies", "host_copies", (IMAGE,)),
    Run("kept", "kept", (IMAGE, "rounds"), keeps=True),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it was sent."""

    op: int
    flags: int
    body: bytes
    bulk: int  # bytes behind its frame

    def kind(self) -> int:
        """Return the type of the graph node that a record is about; 0 for all others."""
        at = 0
        if self.op == NUMBERS["GRAPH_SET"]:
            at = 24
        elif self.op in (NUMBERS["GRAPH_NODE"], NUMBERS["GRAPH_ALLOCATE"]):
            at = 8 * self.flags  # the request
            edges, children = struct.unpack_from("<QQ", self.body, at + 16)
            at += 40 + 16 * edges + 8 * children
        return struct.unpack_from("<I", self.body, at)[0] if at else 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The bytes of a record; None for words that are not the same each time."""

    op: int
    flags: int
    bulk: int
    words: tuple[bytes | None, ...]
    does: str = ""  # what the worker's code calls for it

    def fits(self, sent: Sent) -> bool:
        """Return whether a record has these bytes."""
        if (self.flags, self.bulk, self.size) != (sent.flags, sent.bulk, len(sent.body)):
            return False
        return all(
            word is None or word == sent.body[at * WORD : at * WORD + WORD]
            for at, word in enumerate(self.words)
        )

    @property
    def size(self) -> int:
        return len(self.words) * WORD

    def record(self) -> bytes:
        """Return the record; masked words are zeros."""
        body = b"".join(word or bytes(WORD) for word in self.words)
        return RECORD.pack(self.op, self.flags, RECORD.size + len(body)) + body

    def frame(self) -> bytes:
        """Return a frame of this record alone, with zeros as the bytes behind it."""
        record = self.record()
        return FRAME.pack(FRAME_MAGIC, len(record), self.bulk) + record + bytes(self.bulk)

    def lines(self) -> Iterator[str]:
        """Yield the lines of this sample in a file."""
        yield f"{NAMES[self.op]} flags {self.flags} bulk {self.bulk}"
        texts = [MASKED if word is None else word.hex() for word in self.words]
        for at in range(0, len(texts), 4):
            yield f"  {' '.join(texts[at : at + 4])}"
        yield f"  -> {self.does}"


def read(path: Path) -> list[Sample]:
    """Return the samples of a file."""
    found: list[Sample] = []
    for entry in path.read_text(encoding="ascii").split("\n\n"):
        head, *lines = entry.strip().splitlines()
        name, _, flags, _, bulk = head.split()
        texts = " ".join(lines[:-1]).split()
        words = tuple(None if text == MASKED else bytes.fromhex(text) for text in texts)
        does = lines[-1].removeprefix("  -> ")
        found.append(Sample(NUMBERS[name], int(flags), int(bulk), words, does))
    return found


def all_samples() -> dict[str, list[Sample]]:
    """Return the samples of all files, by run."""
    return {path.stem: read(path) for path in sorted(FOLDER.glob("*.txt"))}


def sent_in(data: bytes) -> Iterator[Sent]:
    """Give the records of a stream of frames, in their order."""
    at = 0
    while len(data) - at >= FRAME.size:
        _, size, bulk = FRAME.unpack_from(data, at)
        at += FRAME.size
        body = data[at : at + size]
        flags_at = 0
        for op, content, last in records_of(body):
            flags = RECORD.unpack_from(body, flags_at)[1]
            flags_at += RECORD.size + len(content)
            yield Sent(op, flags, bytes(content), bulk if last else 0)
        at += size + bulk


def tapped(of: Run, library: Path, folder: Path) -> list[Sent]:
    """Run a program and return the records that it sent."""
    folder.mkdir()
    program = compiled(of.program, folder, library)
    taps = folder / "taps"
    taps.mkdir()
    options = [*of.options, "--tap", str(taps)]
    if of.sharing:
        (folder / "shared").mkdir()
        options += ["--share", str(folder / "shared")]
    more = {} if of.keeps else {"GPUPOOL_KEEP_FREED": "0"}
    if of.known:
        more["GPUPOOL_IMAGES"] = str(folder / "images")
        (folder / "images").mkdir(mode=0o700)
        data = Path(IMAGE).read_bytes()
        (folder / "images" / hashlib.sha256(data).hexdigest()).write_bytes(data)
    for word in of.words:  # the file's name is among the bytes; its folder's must not be
        if (KERNELS / word).is_file():
            shutil.copy(KERNELS / word, folder)
    with Control(folder) as control:
        command = ["/usr/bin/env", "-C", str(folder), str(program), *of.words]
        done = run(library, control, command, *options, devices=of.devices, more=more)
    assert done.returncode == 0, done.stderr
    streams = [path.read_bytes() for path in sorted(taps.iterdir())]
    return [sent for data in streams for sent in sent_in(data)]


def all_sent(library: Path, folder: Path) -> dict[str, list[Sent]]:
    """Run all programs, two at a time, and return the records of each."""
    with ThreadPoolExecutor(2) as pool:
        asked = {of.name: pool.submit(tapped, of, library, folder / of.name) for of in RUNS}
    return {name: found.result() for name, found in asked.items()}


# --- writing them down ----------------------------------------------------------------------------


def by_number(sent: list[Sent]) -> dict[int, list[Sent]]:
    """Return the records of a run by their numbers."""
    found: dict[int, list[Sent]] = {}
    for one in sent:
        found.setdefault(one.op, []).append(one)
    return found


def masked(same: list[Sent]) -> Sample | None:
    """Return the sample of one record as several runs sent it; None if they differ in form."""
    first = same[0]
    if any(
        (one.flags, one.bulk, len(one.body)) != (first.flags, first.bulk, len(first.body))
        for one in same
    ):
        return None
    words: list[bytes | None] = []
    for at in range(0, len(first.body), WORD):
        found = {one.body[at : at + WORD] for one in same}
        words.append(found.pop() if len(found) == 1 else None)
    if first.flags & 1:
        words[0] = None  # the request's number counts all that were made before
    return Sample(first.op, first.flags, first.bulk, tuple(words))


def chosen(runs: list[dict[int, list[Sent]]], op: int, seen: set[tuple[int, ...]]) -> list[Sample]:
    """Return the samples of one record that several repetitions of a run give."""
    best: dict[tuple[int, ...], Sample] = {}
    for same in zip(*(found.get(op, []) for found in runs), strict=False):
        sample = masked(list(same))
        if sample is None:
            continue
        key = (op, same[0].flags, sample.size, same[0].kind())
        other = best.get(key)
        if other is None or sample.words.count(None) < other.words.count(None):
            best[key] = sample
    fresh = sorted((key for key in best if key not in seen), key=lambda key: key[2])
    small = [key for key in fresh if key[2] <= SIZE_MAX]
    if not small and not any(key[0] == op for key in seen):
        small = fresh[:1]
    taken = small[:: max(1, len(small) // SAMPLES_MAX)] if op not in BY_KIND else small
    seen.update(taken)
    return [best[key] for key in taken]


BY_KIND = {NUMBERS["GRAPH_SET"], NUMBERS["GRAPH_NODE"]}
"""Records that have a layout for each type of node; all of their samples are kept."""


def decoded(folder: Path, samples: list[Sample]) -> list[str]:
    """Return the worker's calls for each sample; see ``golden_decode.py``."""
    frames = folder / "frames"
    frames.write_bytes(b"".join(sample.frame() for sample in samples))
    done = in_one_process(folder, str(HERE / "golden_decode.py"), str(frames))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def write(library: Path) -> None:
    """Add samples of the records that have none yet."""
    repeated: list[dict[str, dict[int, list[Sent]]]] = []
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory() as folder:
            sent = all_sent(library, Path(folder))
        repeated.append({name: by_number(found) for name, found in sent.items()})
    seen: set[tuple[int, ...]] = set()
    known = all_samples()
    there = {sample.op for samples in known.values() for sample in samples}
    for of in RUNS:
        runs = [one[of.name] for one in repeated]
        fresh = [one for op in sorted({*runs[0]} - there) for one in chosen(runs, op, seen)]
        there.update(runs[0])
        if fresh:
            keep(of.name, [*known.get(of.name, []), *fresh])


def keep(name: str, samples: list[Sample]) -> None:
    """Write the samples of a run, with the worker's calls for them."""
    with tempfile.TemporaryDirectory() as folder:
        does = decoded(Path(folder), samples)
    done = [replace(sample, does=one) for sample, one in zip(samples, does, strict=True)]
    text = "\n\n".join("\n".join(sample.lines()) for sample in done)
    (FOLDER / f"{name}.txt").write_text(text + "\n", encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="add what has no sample")
    parser.add_argument("--decode", action="store_true", help="keep them, and decode them anew")
    options = parser.parse_args()
    if options.write:
        write(build.ensure().parent)
    elif options.decode:
        for name, samples in all_samples().items():
            keep(name, samples)


if __name__ == "__main__":
    main()
