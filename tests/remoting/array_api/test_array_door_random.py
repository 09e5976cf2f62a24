"""Random numbers: seeds, states and generators by CuPy's rules."""

import importlib
from typing import Any

import numpy as np
import pytest
from door_cases import refused


def test_random_states_repeat(cp: Any) -> None:
    cp.random.seed(5)
    first = cp.random.rand(4).get()
    cp.random.seed(5)
    assert np.array_equal(first, cp.random.rand(4).get())
    array = cp.arange(10)
    cp.random.shuffle(array)
    assert sorted(array.tolist()) == list(range(10))
    assert len(cp.random.bytes(7)) == 7
    assert cp.random.random_integers(3, size=20).get().max() <= 3
    assert cp.random.multinomial(5, [0.5, 0.5], 3).get().sum(axis=1).tolist() == [5, 5, 5]
    assert cp.random.get_random_state().tomaxint(3).shape == (3,)


@pytest.mark.parametrize("name", ["XORWOW", "MRG32k3a", "Philox4x3210"])
def test_raw_random_bits_follow_from_the_seed(cp: Any, name: str) -> None:
    kind = getattr(cp.random, name)
    first, again, other = kind(5).random_raw(9), kind(5).random_raw(9), kind(6).random_raw(9)
    assert first.dtype == np.int32
    assert (first.get() == again.get()).all()
    assert (first.get() != other.get()).any()
    assert kind(5).random_raw(2, output=False) is None


def test_a_seed_of_several_numbers_counts_as_a_whole(cp: Any) -> None:
    seeds = [np.array([1, 2]), np.array([1, 3]), 1, 1 << 80, np.random.SeedSequence(7)]
    drawn = [cp.random.XORWOW(seed).random_raw(4).get().tolist() for seed in seeds]
    assert len({tuple(each) for each in drawn}) == len(seeds)
    states = [cp.random.RandomState(np.array([1, last])).rand(4).tolist() for last in (2, 3)]
    assert states[0] != states[1]


def test_a_spawned_seed_is_one_of_its_own(cp: Any) -> None:
    source = cp.random.XORWOW(7)
    spawned = source._seed_seq.spawn(2)  # as dask does it
    again = np.random.SeedSequence(7, spawn_key=(1,))
    drawn = [cp.random.XORWOW(seed).random_raw(4).tolist() for seed in (*spawned, again, 7)]
    assert drawn[1] == drawn[2]
    assert len({tuple(each) for each in drawn}) == 3
    states: Any = importlib.import_module("cupy.random._generator")
    for sequence in (spawned[1], np.random.SeedSequence([1 << 40, 5], spawn_key=(3, 1 << 33))):
        same = np.random.SeedSequence(states._entropy(sequence))
        assert (same.generate_state(8) == sequence.generate_state(8)).all()


def test_a_seed_in_the_environment_is_used(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_SEED", "6")
    cp.random.reset_states()
    first = cp.random.uniform(size=4).get()
    cp.random.reset_states()
    assert (cp.random.uniform(size=4).get() == first).all()
    monkeypatch.delenv("CUPY_SEED")
    cp.random.reset_states()


def test_generators_share_the_state_of_their_bit_generator(cp: Any) -> None:
    source = cp.random.Philox4x3210(3)
    first, second = cp.random.Generator(source), cp.random.Generator(source)
    assert first.bit_generator is source
    assert (first.random(8).get() != second.random(8).get()).any()
    first.bit_generator = cp.random.Philox4x3210(3)
    second.bit_generator = cp.random.Philox4x3210(3)
    assert (first.random(8).get() == second.random(8).get()).all()
    assert cp.random.default_rng(first) is first


def test_a_generator_checks_bounds_and_outputs_before_it_draws(cp: Any) -> None:
    made = cp.random.default_rng(1)
    part = cp.zeros((4, 6))[:3, :2]
    refused(
        (ValueError, "high is out of bounds", lambda: made.integers(0, 300, dtype="u1")),
        (ValueError, "low >= high", lambda: made.integers(4, 4)),
        (TypeError, "wrong type", lambda: made.random(3, out=cp.zeros(3, "f4"))),
        (ValueError, "size must match", lambda: made.random((2, 3), out=cp.zeros((3, 3)))),
        (ValueError, "not contiguous", lambda: made.standard_normal((3, 2), out=part)),
        (TypeError, "", lambda: made.standard_normal(3, dtype="i4")),
    )
    assert made.integers(0, (1 << 64) - 1, 5, "u8").dtype == np.uint64


def test_distributions_of_kernels_have_any_type(cp: Any) -> None:
    assert cp.random.beta(1.0, 2.0, size=3, dtype="f2").get().dtype == np.float16
    assert cp.random.noncentral_f(3.0, 4.0, 1.0, size=3, dtype="i4").get().dtype == np.int32
    assert cp.random.randint(0, 256, 5, dtype="u1").dtype == np.uint8


def test_choices_of_what_there_is(cp: Any) -> None:
    assert sorted(cp.random.choice(4, 4, replace=False).tolist()) == [0, 1, 2, 3]
    assert cp.random.choice(3, 5, p=[0, 0, 1]).tolist() == [2] * 5
    assert cp.random.choice(0, 0).shape == cp.random.choice([], 0).shape == (0,)
