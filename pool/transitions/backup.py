"""A backup of people's decisions about a pool: policy, tokens, labels, history, audit.

Never in it: leases and what waits, which belong to a moment; servers, which join again; secrets,
of which the table holds hashes only; and keys, which the table never had. A backup is one line
that says what it is, and one JSON object. It is restored into a pool without leases and without a
policy of its own, in parts, by one last command.
"""

import json
import re
import zlib
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, cast

from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.commands import RestoreBackup
from gpupool.pool.model.ids import Milliseconds, Plain, TokenId
from gpupool.pool.model.policy import POLICY_COUNT_MAX, Policy, PolicyVersion
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import (
    ACT_COUNT_MAX,
    SERVER_COUNT_MAX,
    TOKEN_COUNT_MAX,
    Act,
    Former,
    PoolState,
    Token,
    TokenKind,
)
from gpupool.pool.scheduling.filters import LABEL_COUNT_MAX, label_refusal
from gpupool.pool.transitions.kept_records import record
from gpupool.pool.transitions.policy_versions import UnpackError, unpack_text
from gpupool.pool.transitions.shallow_json import load_shallow
from gpupool.pool.transitions.uploads import PART_COUNT_MAX, assemble, parts_of

FORMAT = "gpupool-backup"
VERSION = 1
SIZE_MAX = 24 << 20
"""Bytes of a backup: 16,384 tokens need 6 MB, 32 policies 4 MB at most."""

BYTES = "$bytes"
"""The key of a JSON object that stands for bytes, in hex."""

_HALF_CHARACTER = re.compile(rb"\\u[dD]")
"""The possible start of a lone surrogate, or of a character that JSON writes as a surrogate
pair."""


@dataclass(frozen=True, slots=True)
class Backup:
    """Everything that a backup holds."""

    cluster_id: str
    pool: str
    index: int  # of the table when it was made
    made_at: Milliseconds  # table time
    policy: Policy
    policies: tuple[PolicyVersion, ...]
    tokens: tuple[Token, ...]
    labels: dict[str, dict[str, str]]  # by name of the server
    acts: tuple[Act, ...]


class BackupError(ValueError):
    """A file or upload is no backup that can be restored; the text is one clause that says why."""


def make_backup(state: PoolState) -> Backup:
    """Return the backup of a table."""
    labels = {s.name: s.labels for s in state.servers.values() if s.labels}
    return Backup(
        cluster_id=state.cluster_id,
        pool=state.name,
        index=state.index,
        made_at=state.now,
        policy=state.policy,
        policies=state.policies,
        # A token for a server is used once, within the hour.
        tokens=tuple(t for t in state.tokens.values() if t.kind is not TokenKind.SERVER),
        labels=state.labels_awaited | labels,
        acts=all_acts(state)[-ACT_COUNT_MAX:],
    )


def all_acts(state: PoolState) -> tuple[Act, ...]:
    """Return the acts that came with a restored backup, then the pool's own."""
    return (*(state.former.acts if state.former else ()), *state.acts)


# --- the file -------------------------------------------------------------------------------------


def to_file(backup: Backup) -> bytes:
    """Return the bytes of a backup's file."""
    body = json.dumps(_to_json(encode(backup)), separators=(",", ":")).encode()
    return f"{FORMAT} {VERSION} {sha256(body).hexdigest()}\n".encode() + body + b"\n"


def from_file(data: bytes) -> Backup:
    """Return the backup in ``data``.

    Raises:
        BackupError: when it is none, is damaged, was made by a newer gpupool, or breaks a limit.
    """
    head, _, rest = data.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    if len(words) != 3 or words[0] != FORMAT:
        raise BackupError("it is no backup of a pool")
    if words[1] != str(VERSION):
        if words[1].isascii() and words[1].isdigit():
            raise BackupError(f"it has format {words[1]}, and this gpupool reads {VERSION}")
        raise BackupError("it is damaged: its first line makes no sense")
    body = rest.removesuffix(b"\n")
    if sha256(body).hexdigest() != words[2]:
        raise BackupError("it is damaged: its checksum does not match")
    try:
        backup = decode(Backup, read_json(body))
    except (CodecError, ValueError, TypeError) as error:
        raise BackupError(f"it makes no sense: {error}"[:300]) from error
    if why := _limit_broken(backup):
        raise BackupError(f"it breaks a limit: {why}")
    return backup


def _limit_broken(backup: Backup) -> str:
    """Return the part beyond the table's limits, or an empty string; types are checked already."""
    if len(backup.tokens) > TOKEN_COUNT_MAX or len({t.id for t in backup.tokens}) != len(
        backup.tokens
    ):
        return "its tokens"
    for token in backup.tokens:
        if not token.user or len(token.secret_hash) != 32 or token.kind is TokenKind.SERVER:
            return f"token {token.id[:40]}"
    if len(backup.labels) > SERVER_COUNT_MAX:
        return "its labels"
    for labels in backup.labels.values():
        if len(labels) > LABEL_COUNT_MAX:
            return "its labels"
        if why := label_refusal(labels):
            return why
    if len(backup.acts) > ACT_COUNT_MAX or len(backup.policies) > POLICY_COUNT_MAX:
        return "its history"
    versions = [each.version for each in backup.policies]
    if (versions[-1] if versions else 0) != backup.policy.version or versions != sorted(
        set(versions)
    ):
        return "its policies do not end with the one in force"
    try:
        for each in backup.policies:
            unpack_text(each.packed)
    except UnpackError as error:
        return str(error)
    return ""


def _to_json(plain: Plain) -> Any:
    if isinstance(plain, bytes):
        return {BYTES: plain.hex()}
    if isinstance(plain, list):
        return [_to_json(each) for each in plain]
    if isinstance(plain, dict):
        return {key: _to_json(each) for key, each in plain.items()}
    return plain


def read_json(body: bytes) -> Plain:
    """Return the plain value in a backup's JSON: at one go when no rule but types can be broken.

    What that cannot read is read again piece by piece, for the reason that all servers must give.
    """
    if body.isascii() and b"\0" not in body and not _HALF_CHARACTER.search(body):
        try:
            return cast(Plain, load_shallow(body, _read_object))
        except (ValueError, TypeError):
            pass
    return from_json(load_shallow(body))


def _read_object(fields: dict[str, Any]) -> Any:
    return bytes.fromhex(fields[BYTES]) if fields.keys() == {BYTES} else fields


def from_json(value: Any) -> Plain:
    """Return the plain value that a value in JSON stands for."""
    if isinstance(value, list):
        return [from_json(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.keys() == {BYTES}:
            return bytes.fromhex(fields[BYTES])
        return {key: from_json(each) for key, each in fields.items()}
    if isinstance(value, str):
        value.encode()  # JSON can write half a character, which CBOR cannot
    return cast(Plain, value)


# --- restoring ------------------------------------------------------------------------------------


def pack(file: bytes) -> list[bytes]:
    """Return the file of a backup in the parts in which it is sent.

    Raises:
        BackupError: when they are too many.
    """
    parts = parts_of(zlib.compress(file, 9))
    if len(file) > SIZE_MAX or len(parts) > PART_COUNT_MAX:
        raise BackupError(f"it is too large: {len(file) >> 20} MiB")
    return parts


def unpack(data: bytes) -> Backup:
    """Return the backup from its packed and joined parts in ``data``.

    Raises:
        BackupError: when it is none.
    """
    inflater = zlib.decompressobj()
    try:
        file = inflater.decompress(data, SIZE_MAX + 1)
    except zlib.error as error:
        raise BackupError("it is damaged") from error
    if len(file) > SIZE_MAX or not inflater.eof or inflater.unused_data:
        raise BackupError("it is too large or damaged")
    return from_file(file)


def restore_refusal(state: PoolState) -> str:
    """Return why nothing may be restored into this pool, or an empty string."""
    if state.former is not None:
        return "a backup was restored into this pool already"
    if state.leases or state.waiting:
        return "leases are held or waited for here, and those of a backup are never restored"
    if state.policy.version:
        return "this pool has a policy of its own already"
    return ""


def restore_backup(state: PoolState, command: RestoreBackup) -> Step:
    """Take a staged backup into the table, whole or not at all.

    Tokens that the pool has stay as they are. Labels of servers that are not here yet wait until
    a server of that name joins.
    """
    if state.former is not None and state.former.digest == command.digest:
        return state, Result(ok=True)  # proposed again
    if why := restore_refusal(state):
        return state, refuse(RefusalKind.CONFLICT, why)
    state, data = assemble(state, command.upload, command.part_count, command.digest)
    if isinstance(data, Result):
        return state, data
    try:
        backup = unpack(data)
    except BackupError as error:
        return state, refuse(RefusalKind.INVALID, str(error))
    tokens: dict[TokenId, Token] = {token.id: token for token in backup.tokens} | state.tokens
    if len(tokens) > TOKEN_COUNT_MAX:
        return state, refuse(
            RefusalKind.DENIED, f"the pool would have more than {TOKEN_COUNT_MAX} tokens"
        )
    servers = state.servers
    awaited = dict(backup.labels)
    for server in state.servers.values():
        if (labels := awaited.pop(server.name, None)) is not None:
            # What this server was started with counts more than what it was called before.
            both = labels | server.labels
            if len(both) <= LABEL_COUNT_MAX:
                servers = servers.set(server.id, replace(server, labels=both))
    state = replace(
        state,
        tokens=tokens,
        servers=servers,
        policy=backup.policy,
        policies=backup.policies,
        labels_awaited=awaited,
        former=Former(backup.cluster_id, command.digest, backup.acts),
    )
    what = f"policy version {backup.policy.version}, {len(backup.tokens)} tokens"
    what += f", labels of {len(backup.labels)} servers, {len(backup.acts)} acts"
    return record(state, "restored", by=command.by, subject=backup.pool, text=what), Result(ok=True)
