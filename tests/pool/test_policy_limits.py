"""Documents that are made to be slow, deep or large: refused before or while they are read."""

import tomllib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool.policy_kit import zone

from gpupool.pool.model.policy import Zone
from gpupool.pool.policy.policy_document import (
    PROBLEM_COUNT_MAX,
    ZONE_COUNT_MAX,
    PolicyTextError,
    parse_policy,
)
from gpupool.pool.policy.toml_limits import KEY_PART_COUNT_MAX, NESTING_MAX, shape_problem


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a" + ".a" * 100_000 + " = 1\n", 1, "a key has at most 8 parts"),
        ("[" + "a." * 100_000 + "a]\n", 1, "a key has at most 8 parts"),
        ('# fine\n"x"' + ' . "a"' * 8 + " = 1\n", 2, "a key has at most 8 parts"),
        ('x = """one"""""\n' + "a." * 9 + "a = 1\n", 2, "a key has at most 8 parts"),
        ("x = '''one'''''\n" + "a." * 9 + "a = 1\n", 2, "a key has at most 8 parts"),
        ('x = """one""""\n' + "a." * 9 + "a = 1\n", 2, "a key has at most 8 parts"),
        ("x = '''one''''\n" + "a." * 9 + "a = 1\n", 2, "a key has at most 8 parts"),
        ('x = [""""""]\n' + "a." * 9 + "a = 1\n", 2, "a key has at most 8 parts"),
        ("\n\nx = " + "[" * 100_000, 3, "arrays and tables nest at most 8 deep"),
        ("x = " + "{a = " * 9 + "1" + "}" * 9, 1, "arrays and tables nest at most 8 deep"),
        ("x = " + "1" * 5000, 0, "exceeds the limit"),
    ],
)
def test_a_shape_that_costs_too_much(text: str, line: int, why: str) -> None:
    with pytest.raises(PolicyTextError) as caught:
        parse_policy(text, zone)
    [problem] = caught.value.problems
    assert problem.line == line
    assert why in problem.text.lower()


@pytest.mark.parametrize(
    "text",
    [
        'x = "a.b.c.d.e.f.g.h.i.j" # a.b.c.d.e.f.g.h.i.j\n',
        "x = '''\n[[[[[[[[[[\n a.a.a.a.a.a.a.a.a.a = 1\n'''\n",
        'x = """one \\""" [[[[[[[[[[ """""\n',
        'x = "\\\\" # [[[[[[[[[[\n',
        "a.b.c.d.e.f.g.h = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 1.5]\n",
        "a.b = 1\n" * 20,
        "# [[[[[[[[[[\n",
        f"x = {'[' * NESTING_MAX}{']' * NESTING_MAX}\n" * 2,
    ],
)
def test_dots_and_brackets_that_are_no_structure(text: str) -> None:
    assert shape_problem(text) is None


@pytest.mark.parametrize("before", ["", "[", "]", "{", "}", "=", ",", "a.a\n", "a#b.b\n", "'a.b'"])
def test_dots_are_counted_from_where_a_key_can_begin(before: str) -> None:
    assert shape_problem(before + "a" + ".a" * (8 - 1)) is None
    line = before.count("\n") + 1
    text = before + "a" + ".a" * 8
    assert shape_problem(text) == (line, "a key has at most 8 parts")


@pytest.mark.parametrize("before", ["", "]", "}}", "[]", "[[]]", "{}", "[{}]\n", "'['", "# [\n"])
def test_brackets_are_counted_by_how_many_are_open(before: str) -> None:
    assert shape_problem(before + "[{" * 4) is None
    line = before.count("\n") + 1
    too_deep = (line, "arrays and tables nest at most 8 deep")
    assert shape_problem(before + "[{" * 4 + "[") == too_deep
    assert shape_problem(before + "{[" * 4 + "{") == too_deep


@pytest.mark.parametrize("opening", ['"', "'", '"""', "'''", '"""a"""' + '"' * 3])
def test_what_stands_behind_a_string_without_an_end_is_not_looked_at(opening: str) -> None:
    assert shape_problem(f"x = {opening}" + "[" * 9) is None


@pytest.mark.parametrize("backslashes", range(5))
@pytest.mark.parametrize("quote", ['"', '"""'])
def test_an_odd_number_of_backslashes_keeps_a_string_open(quote: str, backslashes: int) -> None:
    text = f"x = {quote}a{chr(92) * backslashes}{quote}" + "[" * 9
    assert (shape_problem(text) is None) is (backslashes % 2 == 1)


def _parts(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((_parts(each) for each in value.values()), default=0)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list):
        return max((_parts(each) for each in value), default=0)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return 0


@given(st.text(alphabet="ab.=\n\"'[]{}#\\, 1", max_size=60))
def test_nothing_valid_and_deep_passes(text: str) -> None:
    """A key of many parts is found wherever the parser finds one."""
    deep = text + "\n" + "z" + ".z" * (KEY_PART_COUNT_MAX + NESTING_MAX) + " = 1\n"
    try:
        tables = tomllib.loads(deep)
    except ValueError:
        return
    if _parts(tables) > 1 + KEY_PART_COUNT_MAX + NESTING_MAX:
        assert shape_problem(deep) is not None


def counted(calls: list[str]) -> Callable[[str], Zone | None]:
    def zone_of(name: str) -> Zone | None:
        calls.append(name)
        return Zone(name, (), (0,))

    return zone_of


def test_time_zones_are_bounded_before_they_are_tabulated() -> None:
    text = "".join(
        f'[[window]]\nzone = "Zone/Z{n}"\nfrom = "01:00"\nto = "02:00"\n'
        "[window.pool]\nmax_gpus = 1\n"
        for n in range(400)
    )
    calls: list[str] = []
    with pytest.raises(PolicyTextError, match=f"more than {ZONE_COUNT_MAX} time zones"):
        parse_policy(text, counted(calls))
    assert len(calls) <= ZONE_COUNT_MAX


def test_reading_ends_after_enough_mistakes() -> None:
    """Each mistake is compared with known names, which costs more than reading it."""
    text = "".join(f"[user.u{n}]\nclass = 'klass{n}'\n" for n in range(4000))
    text += "".join(f"[class.class{n}]\nmax_gpus = 1\n" for n in range(4000))
    with pytest.raises(PolicyTextError) as caught:
        parse_policy(text, zone)
    assert len(caught.value.problems) == PROBLEM_COUNT_MAX
