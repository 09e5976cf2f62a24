"""Recovery from a permanent loss of the majority: one survivor goes on alone with its log.

Raft has no safe way out of that loss, so a person orders the recovery, offline. Every entry of the
survivor's log becomes committed, also one that never was. Entries that only the others had are
lost. The others must never return with their old state: a majority of them would grant on their
own. So they are fenced: the survivor dials them, and a server that hears of the recovery ends for
good. A server that the survivor cannot reach does not hear of it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.consensus.core.library import COMMAND_TYPE
from gpupool.consensus.protocol import closed_cbor, membership
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import StateMachine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Survivor:
    """The content of one server's storage."""

    last_index: int
    last_term: int
    voters: tuple[ServerId, ...]


def replay(storage: Storage, machine: StateMachine) -> Survivor:
    """Bring ``machine`` to the end of the log, committed or not; changes nothing on disk."""
    snapshot, journal = storage.snapshots.latest, storage.journal
    index, voters = 1, ()
    if snapshot is not None:
        machine.restore(snapshot.state)
        index, voters = snapshot.index, snapshot.voters
    for command, entry_index, _term in journal.entries[1:]:
        if entry_index <= index:
            continue
        if command[:1] == MEMBERSHIP_TYPE:
            voters = membership.decode_voters(command[1:])
        elif command[:1] == COMMAND_TYPE:
            try:
                machine.apply(entry_index, closed_cbor.decode(command[1:]))
            except Exception:  # noqa: BLE001 - as in ``RaftNode.apply``, the log goes on.
                _log.exception("entry %d could not be applied", entry_index)
    _, last_index, last_term = journal.entries[-1]
    return Survivor(last_index, last_term, voters)


def recover(
    storage: Storage,
    server_id: ServerId,
    commands: Sequence[Plain],
    *,
    others: Sequence[ServerId] = (),
    why: str = "the pool was recovered without this server",
) -> None:
    """Make ``server_id`` the only voter, and let it commit ``commands`` first.

    Never do this while a majority of the voters may still live. The log is written with one sync,
    so a crash leaves all of it or nothing. After that, ``others`` are fenced: this server refuses
    them for good, and dials them to tell them ``why``.

    Raises:
        StorageError: when it cannot be written.
    """
    journal = storage.journal
    term = max(journal.term, journal.entries[-1][2]) + 1
    journal.set_vote(term, None)
    entries = [MEMBERSHIP_TYPE + membership.encode_voters((server_id,))]
    entries += [COMMAND_TYPE + closed_cbor.encode(command) for command in commands]
    for entry in entries:
        journal.append(entry, journal.last_index + 1, term)
    journal.sync()
    if storage.superblock.floor is not None:
        storage.superblock.found()  # What is lost is lost for good now.
    if fenced := [other for other in others if other != server_id]:
        storage.memory.fence(fenced, why)
        storage.memory.save()
    _log.info("%s is now the only voter, from entry %d on", server_id, journal.last_index)
