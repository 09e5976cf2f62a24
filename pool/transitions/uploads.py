"""Documents that are too large for one command: replicated in parts, used by a last command.

Nothing happens before that last command, which names the upload and the SHA-256 of the whole, so
a document takes effect atomically or not at all. Parts may arrive in any order and more than once.
"""

from hashlib import sha256

from gpupool.pool.model.commands import StagePart
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import PoolState, Staged, with_changes

PART_SIZE_MAX = 12 * 1024
"""A command has at most 32 KiB, envelope included."""

PART_COUNT_MAX = 512
UPLOAD_COUNT_MAX = 4
STAGED_LAPSE_MS = 60_000
"""An upload without a new part for so long is forgotten."""


def parts_of(data: bytes) -> list[bytes]:
    """Return ``data`` in pieces that fit into commands; one empty piece for no data."""
    starts = range(0, max(1, len(data)), PART_SIZE_MAX)
    return [data[start : start + PART_SIZE_MAX] for start in starts]


def stage_part(state: PoolState, command: StagePart) -> Step:
    """Keep one part of an upload."""
    if len(command.upload) != 16 or not 0 <= command.part < PART_COUNT_MAX:
        return state, refuse(RefusalKind.INVALID, "malformed part of an upload")
    if len(command.data) > PART_SIZE_MAX:
        return state, refuse(RefusalKind.INVALID, f"a part has at most {PART_SIZE_MAX} bytes")
    known = state.staged.get(command.upload)
    if known is None and len(state.staged) >= UPLOAD_COUNT_MAX:
        return state, refuse(
            RefusalKind.BUSY, "other large documents are being sent; try again in a minute"
        )
    parts = known.parts if known is not None else {}
    entry = Staged(parts | {command.part: command.data}, state.now)
    return with_changes(state, staged=state.staged | {command.upload: entry}), Result(ok=True)


def assemble(
    state: PoolState, upload: bytes, part_count: int, digest: bytes
) -> tuple[PoolState, bytes | Result]:
    """Return the whole upload, or why there is none; either way it is forgotten."""
    entry = state.staged.get(upload)
    if entry is None:
        return state, refuse(
            RefusalKind.CONFLICT, "its parts are not there any more; send it again"
        )
    staged = {key: each for key, each in state.staged.items() if key != upload}
    state = with_changes(state, staged=staged)
    if not 0 < part_count <= PART_COUNT_MAX or entry.parts.keys() != set(range(part_count)):
        return state, refuse(RefusalKind.CONFLICT, "some of its parts are missing; send it again")
    data = b"".join(entry.parts[number] for number in range(part_count))
    if sha256(data).digest() != digest:
        return state, refuse(
            RefusalKind.INVALID, "its parts do not have the SHA-256 that was announced"
        )
    return state, data


def lapse_staged(state: PoolState) -> PoolState:
    """Return ``state`` without the uploads that were given up."""
    limit = state.now - STAGED_LAPSE_MS
    if all(entry.renewed >= limit for entry in state.staged.values()):
        return state
    return with_changes(
        state, staged={key: each for key, each in state.staged.items() if each.renewed >= limit}
    )
