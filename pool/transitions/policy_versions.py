"""How a policy gets into the table: packed, sent in parts, put in force at once, and remembered."""

import json
import zlib
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import cast

from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.commands import ApplyPolicy
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.policy import (
    PACKED_SIZE_MAX,
    POLICY_COUNT_MAX,
    TEXT_SIZE_MAX,
    Policy,
    PolicyVersion,
)
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import PoolState, with_changes
from gpupool.pool.transitions.shallow_json import load_shallow
from gpupool.pool.transitions.uploads import assemble

DRAFT_SIZE_MAX = 4 << 20
"""Bytes of an inflated draft: the text, its rules, and a few KiB for each time zone."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A document with the policy that the proposing server compiled from it."""

    text: bytes  # packed by ``pack_text``
    policy: Policy  # its version and digest are set when it is applied


class UnpackError(ValueError):
    """Bytes were not made by ``pack_text`` or ``pack_draft``."""


def pack_text(text: str) -> bytes:
    """Return a document, deflated.

    Raises:
        UnpackError: when it is larger than documents may be.
    """
    data = text.encode()
    packed = zlib.compress(data, 9)
    if len(data) > TEXT_SIZE_MAX or len(packed) > PACKED_SIZE_MAX:
        raise UnpackError(
            f"a policy has at most {TEXT_SIZE_MAX >> 10} KiB, {PACKED_SIZE_MAX >> 10} KiB deflated"
        )
    return packed


def unpack_text(packed: bytes) -> str:
    """Return the document that ``pack_text`` packed.

    Raises:
        UnpackError: when it is none, or too large.
    """
    if len(packed) > PACKED_SIZE_MAX:
        raise UnpackError("the document is too large")
    try:
        return _inflate(packed, TEXT_SIZE_MAX).decode()
    except UnicodeDecodeError as error:
        raise UnpackError("the document is not UTF-8") from error


def pack_draft(draft: Draft) -> bytes:
    """Return a draft as bytes, which are sent in parts."""
    plain = {"text": draft.text.hex(), "policy": _to_json(encode(draft.policy))}
    return zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 9)


def unpack_draft(data: bytes) -> Draft:
    """Return the draft that ``data`` stands for.

    Raises:
        UnpackError: when it is none.
    """
    try:
        plain = load_shallow(_inflate(data, DRAFT_SIZE_MAX))
        text = bytes.fromhex(plain["text"])
        policy = decode(Policy, _from_json(plain["policy"]))
    except (CodecError, ValueError, KeyError, TypeError) as error:
        raise UnpackError(f"not a policy: {error}"[:200]) from error
    unpack_text(text)
    return Draft(text, policy)


def apply_policy(state: PoolState, command: ApplyPolicy) -> Step:
    """Put a staged policy in force, unless another one was put in force meanwhile."""
    current = state.policy
    if current.digest == command.digest and current.version == command.base + 1:
        return state, Result(ok=True)  # proposed again
    state, data = assemble(state, command.upload, command.part_count, command.digest)
    if isinstance(data, Result):
        return state, data
    if command.base != current.version:
        by = state.policies[-1].by if state.policies else "somebody"
        why = f"{by} has applied version {current.version} meanwhile"
        return state, refuse(RefusalKind.CONFLICT, why)
    try:
        draft = unpack_draft(data)
    except UnpackError as error:
        return state, refuse(RefusalKind.INVALID, str(error))
    version = current.version + 1
    policy = replace(draft.policy, version=version, digest=command.digest)
    entry = PolicyVersion(version, command.by, state.now, draft.text)
    kept = (*state.policies[-POLICY_COUNT_MAX + 1 :], entry)
    return with_changes(state, policy=policy, policies=kept), Result(ok=True)


def digest_of(data: bytes) -> bytes:
    """Return the digest of a packed draft, which ``ApplyPolicy`` announces."""
    return sha256(data).digest()


def _inflate(data: bytes, size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        raise UnpackError("the document is damaged") from error
    if len(inflated) > size_max or not inflater.eof or inflater.unused_data:
        raise UnpackError("the document is too large or damaged")
    return inflated


def _to_json(plain: Plain) -> dict[str, Plain]:
    """Return plain values with the digest, the only bytes in them, left out."""
    assert isinstance(plain, dict)
    return {key: value for key, value in plain.items() if key not in ("digest", "version")}


def _from_json(plain: object) -> object:
    if (
        not isinstance(plain, dict)
        or {"digest", "version"} & cast("dict[str, Plain]", plain).keys()
    ):
        raise UnpackError("not a policy")
    return cast(object, plain)
