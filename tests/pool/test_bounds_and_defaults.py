"""Bounds and defaults that all servers must have alike: ``apply`` decides by them."""

import dataclasses
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

from gpupool.pool.model import (
    codec,
    commands,
    forgetting,
    formats,
    policy,
    relocation,
    silences,
    sizes,
    state,
    suspension,
)
from gpupool.pool.model.clock_move import ClockMove
from gpupool.pool.model.results import Result

DAY_MS = 24 * 60 * 60 * 1000

BOUNDS: dict[ModuleType, dict[str, float]] = {
    codec: {
        "INTEGER_MAX": 18_446_744_073_709_551_616,
        "ITEM_COUNT_MAX": 1_000_000,
        "HASH_BYTES": 16,
        "BLOB_BYTES": 64,
        "HASH_VERSION": 1,
    },
    commands: {"VERSION": 1},
    forgetting: {
        "SALT_SIZE": 16,
        "DIGEST_SIZE": 32,
        "FORGOTTEN_COUNT_MAX": 64,
        "FORGOTTEN_MS": 90 * DAY_MS,
    },
    formats: {
        "VERSION": 12,
        "ALL_STARVED_SINCE": 12,
        "ADDRESSES_SINCE": 12,
        "BEFORE_VERSIONS": 5,
    },
    policy: {
        "UNIT": 1_000_000_000_000,
        "MILLI": 1_000_000_000,
        "NO_LIMIT": -1,
        "MIN_RUN_MS": 600_000,
        "POLICY_COUNT_MAX": 32,
        "TEXT_SIZE_MAX": 262_144,
        "PACKED_SIZE_MAX": 49_152,
    },
    relocation: {"RELOCATION_MS": 900_000, "BEGIN_MS": 60_000},
    silences: {
        "SILENCE_COUNT_MAX": 256,
        "SILENCE_MAX_MS": 90 * DAY_MS,
        "SILENCE_NAME_MAX": 64,
        "SILENCE_SUBJECT_MAX": 200,
    },
    sizes: {"SIZE_MAX": 1_152_921_504_606_846_976, "SHARE_MIN": 0.01},
    state: {
        "VOTER_COUNT_MAX": 7,
        "NAME_LENGTH_MAX": 64,
        "SERVER_COUNT_MAX": 4096,
        "TOKEN_COUNT_MAX": 16_384,
        "TOKEN_USES_MAX": 256,
        "EVENT_COUNT_MAX": 256,
        "ACT_COUNT_MAX": 1024,
        "RECORD_COUNT_MAX": 1024,
        "CLOSED_REQUEST_COUNT_MAX": 8192,
        "WAITING_COUNT_MAX": 4096,
        "USER_WAITING_COUNT_MAX": 512,
        "WAITING_LAPSE_MS": 15_000,
        "STARVED_AFTER_MS": 60_000,
        "PARTITION_SIZE_MIN": 1_048_576,
    },
    suspension: {"SPAN_COUNT_MAX": 64, "DRIVER_SINCE": 570},
}
"""Another value needs a new version of the formats, from which on ``apply`` takes it."""


@pytest.mark.parametrize("module", BOUNDS, ids=lambda module: module.__name__)
def test_every_server_has_the_same_bounds(module: ModuleType) -> None:
    assert {name: vars(module)[name] for name in BOUNDS[module]} == BOUNDS[module]


TELLING = {
    "ClockMove.ahead": (),
    "CreateToken.uses": 1,
    "PoolState.data_encryption": "tls",
    "PoolState.policy": policy.Policy(),
    "PoolState.starved_after_ms": 60_000,
    "Request.placement": state.Placement.PACK,
    "Server.formats": 5,
    "Server.status": state.ServerStatus.JOINED,
    "ServerUp.formats": 5,
    "Token.uses": 1,
}
"""The defaults that say something. All others are nothing: false, zero, empty or missing."""

ROWS: list[type[Any]] = [
    ClockMove,
    Result,
    *(
        kind
        for module in (commands, forgetting, policy, relocation, silences, state, suspension)
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    ),
]


@pytest.mark.parametrize("kind", ROWS)
def test_a_field_that_is_left_out_says_nothing_but_for_a_few(kind: type[Any]) -> None:
    """A table and a command may leave it out, so its default has to be the meaning of absence."""
    for each in dataclasses.fields(kind):
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            continue
        default = codec.default_of(each)
        name = f"{kind.__name__}.{each.name}"
        if name in TELLING:
            assert default == TELLING[name]
        else:
            assert not isinstance(default, Enum), name
            assert not default, name


def test_the_defaults_that_say_something_exist() -> None:
    names = {f"{k.__name__}.{f.name}" for k in ROWS for f in dataclasses.fields(k)}
    assert TELLING.keys() <= names
