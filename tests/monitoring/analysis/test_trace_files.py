"""Traces in files: written traces are read again, and nothing else is read."""

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.monitoring.analysis.trace_files import merged, read_traces, write_trace
from gpupool.monitoring.analysis.trace_form import Builder, Job, Machine, Sample, Trace, TraceError
from gpupool.monitoring.analysis.trace_lines import from_lines, to_lines

names = st.text(max_size=20)
moments = st.floats(0, 1e9, allow_nan=False)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    builder = Builder("drawn", zone="Europe/Berlin")
    for number in range(draw(st.integers(1, 5))):
        submit = draw(moments)
        start = submit + draw(st.floats(0, 1e5))
        builder.add_job(
            Job(
                id=str(number),
                submit=submit,
                start=start,
                end=draw(st.none() | st.just(start + 10)),
                user=draw(names),
                group=draw(names),
                gpus=draw(st.integers(0, 9)),
                fraction=draw(st.floats(0.1, 1)),
                places=tuple(draw(st.lists(st.tuples(names, names), max_size=2))),
            )
        )
    for _ in range(draw(st.integers(1, 5))):
        busy = draw(st.none() | st.floats(0, 1))
        memory = draw(st.none() | st.integers(0, 2**40))
        builder.add_sample(Sample(draw(moments), draw(names), draw(names), busy, memory))
    builder.add_machine(Machine("m", 8, draw(names), 80 << 30))
    return builder.trace()


@given(trace=traces())
def test_what_is_written_is_read_again(trace: Trace) -> None:
    assert from_lines(to_lines(trace), "file") == trace


@given(line=st.text(max_size=80))
def test_any_line_is_read_or_refused(line: str) -> None:
    head = next(iter(to_lines(small())))
    for lines in ([line], [head, line]):
        with contextlib.suppress(TraceError):
            assert from_lines(lines, "file").jobs


def small(*, begin: float = 0.0) -> Trace:
    builder = Builder("small")
    builder.add_job(Job("1", begin, begin, begin + 60, user="ada"))
    return builder.trace()


def test_files_plain_and_packed(tmp_path: Path) -> None:
    for name in ("a.trace", "a.trace.gz"):
        write_trace(small(), str(tmp_path / name))
        assert read_traces([str(tmp_path / name)]) == small()
    assert (tmp_path / "a.trace.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.trace", "a.trace.gz"]


def test_several_become_one(tmp_path: Path) -> None:
    both = merged([small(), small(begin=600.0)])
    assert (len(both.jobs), both.begin, both.end, both.source) == (2, 0.0, 660.0, "small")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no trace of gpupool"),
        (b"name,gpu\n", "is no trace of gpupool"),
        (b'{"form": "gpupool-trace", "version": 9}\n', "has version 9"),
        (b'{"form": "gpupool-trace", "version": 1}\n', "is not whole"),
        (b"\xff\xfe\x00", "is no text in UTF-8"),
        (b"\x1f\x8b\x08\x00damaged", "cannot read"),
        (gzip.compress(b'{"form": "gpupool-trace"', mtime=0)[:-9], "cannot read|is no trace"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=why):
        read_traces([str(path)])


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '["x", 1]',
        '["s", "now", "m", "g", 0.5, null]',
        '["s", 1, "m", "g", 1.5, null]',
        '["j", "1", 0, 0, 1, "u", "g", true, 1.0, 0, "", []]',
        '["j", "1", 0, 0, 1, "u", "g", 1, 1.0, 0, "", [["m"]]]',
        '["j", "1", 0, 0, 1, "u", "g", 1, 1.0, 0]',
        '["j", "1", 0, 0, NaN, "u", "g", 1, 1.0, 0, "", []]',
        '["m", "name", -1.5, "", 0]',
        "[" * 10_000,
    ],
)
def test_lines_that_say_what_cannot_be(line: str) -> None:
    with pytest.raises(TraceError):
        from_lines([*to_lines(small()), line], "file")


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot write"):
        write_trace(small(), str(tmp_path / "nowhere" / "a.trace"))
    with pytest.raises(TraceError, match="no such file"):
        read_traces([str(tmp_path / "a.trace")])
