"""Reference speeds for a way between servers: its interfaces, one thread, or most ways."""

from collections.abc import Mapping

import pytest

from gpupool.monitoring.health.bandwidth_rules import judged, speed_text
from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import Health
from gpupool.remoting.client.check_answers import WaySpeed

NOT_KNOWN: Mapping[ServerId, int] = {}


def ways(*mbit_s: float) -> list[WaySpeed]:
    return [
        WaySpeed(ServerId(f"s{n}"), ServerId(f"t{n}"), int(speed * 1e6))
        for n, speed in enumerate(mbit_s)
    ]


def interfaces(mbit_s: int, count: int = 9) -> dict[ServerId, int]:
    return {ServerId(f"{end}{n}"): mbit_s for end in "st" for n in range(count)}


def found(speeds: list[WaySpeed], known: Mapping[ServerId, int]) -> list[tuple[str, str]]:
    return [(each.way.source, each.status.name) for each in judged(speeds, known)]


@pytest.mark.parametrize(
    ("speeds", "speed", "expected"),
    [
        ((9400, 9300, 9350), 10_000, []),
        ((940, 930, 935), 1_000, []),
        ((9400, 9300, 7900), 10_000, []),  # of 9300: a thread and most ways carry no more
        ((9400, 9300, 7400), 10_000, [("s2", "WARN")]),
        ((9400, 9300, 1800), 10_000, [("s2", "FAIL")]),
        ((940, 930, 799), 1_000, [("s2", "WARN")]),
        ((940, 930, 199), 1_000, [("s2", "FAIL")]),
        # All of them go through a wrong port: most ways are no measure then.
        ((940, 940, 940), 10_000, [("s0", "FAIL"), ("s1", "FAIL"), ("s2", "FAIL")]),
        # One thread encrypts no more than 7 Gbit/s, on any interface.
        ((7000, 7000, 7000), 100_000, []),
        ((7000, 7000, 5500), 100_000, [("s2", "WARN")]),
        # Nobody knows the interfaces.
        ((100, 100, 100), 0, []),
        ((100, 79, 100), 0, [("s1", "WARN")]),
        ((19, 100, 100), 0, [("s0", "FAIL")]),
        ((), 10_000, []),
    ],
)
def test_a_way_is_held_against_what_it_could_carry(
    speeds: tuple[float, ...], speed: int, expected: list[tuple[str, str]]
) -> None:
    assert found(ways(*speeds), interfaces(speed)) == expected


def test_the_slower_interface_counts() -> None:
    known = {ServerId("s0"): 25_000, ServerId("t0"): 1_000, ServerId("s1"): 1_000}
    (one,) = judged(ways(940, 190), known)
    assert (one.way.source, one.status, one.expected_mbit_s) == ("s1", Health.FAIL, 1_000)
    assert one.of_interface
    (one,) = judged(ways(100, 100, 50), NOT_KNOWN)
    assert (one.expected_mbit_s, one.of_interface) == (100, False)


def test_speeds_are_said_in_one_unit() -> None:
    assert [speed_text(each) for each in (0.4, 940, 1000, 9412)] == [
        "0 Mbit/s",
        "940 Mbit/s",
        "1.0 Gbit/s",
        "9.4 Gbit/s",
    ]
