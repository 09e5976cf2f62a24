"""Bounds of a backup: of its file, of its parts, and of the pool that takes it."""

import json
import zlib
from hashlib import sha256

import pytest
from tests.pool.test_apply_properties import founded
from tests.pool.test_backup import POLICY_VERSION, forged, fresh, own_fields, restore

from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions import backup
from gpupool.pool.transitions.backup import (
    BackupError,
    from_file,
    make_backup,
    pack,
    to_file,
    unpack,
)

SIZE_MAX = 24 << 20
NEITHER = "it is too large or damaged"


def refusal(file: bytes) -> str:
    """Return why a file is no backup."""
    with pytest.raises(BackupError) as refused:
        from_file(file)
    return str(refused.value)


def unpack_refusal(data: bytes) -> str:
    """Return why packed parts, joined, are no backup."""
    with pytest.raises(BackupError) as refused:
        unpack(data)
    return str(refused.value)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2", "it has format 2, and this gpupool reads 1"),
        ("10", "it has format 10, and this gpupool reads 1"),
        ("x", "it is damaged: its first line makes no sense"),
        ("", "it is damaged: its first line makes no sense"),
        ("²", "it is damaged: its first line makes no sense"),
        ("٢", "it is damaged: its first line makes no sense"),
    ],
)
def test_a_first_line_with_another_format_says_which_if_it_is_one(version: str, why: str) -> None:
    """With a right and with a wrong checksum."""
    body = to_file(make_backup(founded().state)).partition(b"\n")[2]
    digest = sha256(body.removesuffix(b"\n")).hexdigest()
    for checksum in (digest, "1" * 64):
        assert refusal(f"gpupool-backup {version} {checksum}\n".encode() + body) == why


@pytest.mark.parametrize("head", ["gpupool-backup 1", "gpupool-backup 1 x y", "another 1 x", ""])
def test_a_first_line_has_three_words_and_the_name(head: str) -> None:
    assert refusal(f"{head}\nbody".encode()) == "it is no backup of a pool"


def test_a_body_with_another_checksum_is_damaged() -> None:
    file = to_file(make_backup(founded().state))
    assert refusal(file + b"x") == "it is damaged: its checksum does not match"


def test_the_reason_that_a_file_makes_no_sense_is_cut_at_300_characters() -> None:
    name = "\U000e0001" * 40  # each is written as ten characters
    why = refusal(forged(json.dumps(own_fields() | {name: 1}).encode()))
    assert len(why) == 300
    assert why.startswith("it makes no sense: ")


def test_a_policy_of_the_past_that_cannot_be_read_is_refused() -> None:
    fields = own_fields()
    fields |= {"policies": [POLICY_VERSION], "policy": fields["policy"] | {"version": 1}}
    why = refusal(forged(json.dumps(fields).encode()))
    assert why == "it breaks a limit: the document is too large or damaged"


def test_a_file_of_24_mib_is_packed_and_a_larger_one_is_not() -> None:
    file = bytes(SIZE_MAX)
    assert zlib.decompress(b"".join(pack(file))) == file
    with pytest.raises(BackupError, match=r"^it is too large: 24 MiB$"):
        pack(file + b"\0")


def test_a_file_of_too_many_parts_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    file = b"".join(sha256(number.to_bytes(2)).digest() for number in range(1000))
    assert len(pack(file)) == 3
    monkeypatch.setattr(backup, "PART_COUNT_MAX", 3)
    assert len(pack(file)) == 3
    monkeypatch.setattr(backup, "PART_COUNT_MAX", 2)
    with pytest.raises(BackupError, match=r"^it is too large: 0 MiB$"):
        pack(file)


def test_packed_parts_are_inflated_up_to_24_mib() -> None:
    assert unpack_refusal(zlib.compress(bytes(SIZE_MAX))) == "it is no backup of a pool"
    assert unpack_refusal(zlib.compress(bytes(SIZE_MAX + 1))) == NEITHER


def test_packed_parts_that_end_too_soon_or_too_late_are_refused() -> None:
    data = b"".join(pack(to_file(make_backup(founded().state))))
    assert unpack(data) == make_backup(founded().state)
    assert unpack_refusal(data[:-1]) == NEITHER
    assert unpack_refusal(data + b"x") == NEITHER
    assert unpack_refusal(b"x" + data) == "it is damaged"


@pytest.mark.parametrize("most", [3, 2])
def test_a_pool_takes_a_backup_up_to_the_most_tokens_that_it_can_have(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    made, target = make_backup(founded().state), fresh()
    assert (len(made.tokens), len(target.state.tokens)) == (2, 1)
    monkeypatch.setattr(backup, "TOKEN_COUNT_MAX", most)
    result = restore(target, to_file(made))
    if most == 3:
        assert result.ok
        assert len(target.state.tokens) == 3
    else:
        why = "the pool would have more than 2 tokens"
        assert (result.ok, result.kind, result.why) == (False, "denied", why)
        assert (len(target.state.tokens), target.state.former) == (1, None)


def test_a_backup_with_too_many_tokens_breaks_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    file = to_file(make_backup(founded().state))
    monkeypatch.setattr(backup, "TOKEN_COUNT_MAX", 2)
    assert len(from_file(file).tokens) == 2
    monkeypatch.setattr(backup, "TOKEN_COUNT_MAX", 1)
    assert refusal(file) == "it breaks a limit: its tokens"


def test_a_backup_of_an_empty_table_is_read_again() -> None:
    made = make_backup(PoolState())
    assert from_file(to_file(made)) == made
    assert from_file(to_file(made).removesuffix(b"\n")) == made
