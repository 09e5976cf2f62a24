"""Documents that are made to be slow, deep or large: refused before or while they are read."""

from collections.abc import Callable

import pytest
from tests.pool.policy_kit import zone

from gpupool.pool.model.policy import Zone
from gpupool.pool.policy.policy_document import (
    PROBLEM_COUNT_MAX,
    ZONE_COUNT_MAX,
    PolicyTextError,
    parse_policy,
)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("\n\nx = " + "[" * 100_000, 0, "nest too deep"),
        ("x = " + "{a = " * 5000 + "1" + "}" * 5000, 0, "nest too deep"),
        ("x = " + "1" * 5000, 0, "exceeds the limit"),
    ],
)
def test_a_shape_that_no_parser_follows(text: str, line: int, why: str) -> None:
    with pytest.raises(PolicyTextError) as caught:
        parse_policy(text, zone)
    [problem] = caught.value.problems
    assert problem.line == line
    assert why in problem.text.lower()


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
