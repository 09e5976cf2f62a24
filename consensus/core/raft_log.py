"""Raft log operations: log matching, truncation of conflicting entries, voters. Pure."""

from typing import NamedTuple

from gpupool.consensus.protocol import membership
from gpupool.consensus.protocol.membership import Configuration, Configurations
from gpupool.consensus.storage.journal import Entry, Journal, encode_entries
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId


class SafetyError(GpupoolError):
    """An invariant of Raft would be broken; the server stops instead."""

    code = "consensus-safety"


class Stored(NamedTuple):
    """The result of storing entries that another server sent.

    Attributes:
        match: the index up to which the log is now the sender's; None if the logs do not meet
            where the sender thought.
        hint: the index at which the sender should try next, when ``match`` is None.
        reconfigured: whether other voters are in force now.
    """

    match: int | None
    hint: int = 0
    reconfigured: bool = False


class RaftLog:
    """A journal with the configurations in it."""

    def __init__(self, journal: Journal, base: Configuration) -> None:
        self.journal = journal
        self.configurations = Configurations(base)
        self._encoded: dict[tuple[int, int, int], tuple[int, bytes]] = {}
        for command, index, _ in journal.entries[1:]:
            if command[:1] == MEMBERSHIP_TYPE and index > base.index:
                self.configurations.append(index, membership.decode_voters(command[1:]))

    def append_voters(self, voters: tuple[ServerId, ...], index: int) -> None:
        """Put the configuration that was appended at ``index`` into force."""
        self.configurations.append(index, voters)

    def store(
        self, previous_index: int, previous_term: int, entries: list[Entry], *, commit_index: int
    ) -> Stored:
        """Put entries behind ``previous_index``, if the log meets the sender's there.

        Removes own entries only where they conflict (finding S3): the library removes everything
        behind ``previous_index`` even when it is the same, and a crash before the rest arrives
        loses what this server acknowledged.

        Raises:
            SafetyError: when a committed entry would have to give way.
        """
        journal = self.journal
        base, last = journal.base_index, journal.last_index
        if previous_index > last:
            return Stored(None, last + 1)
        if previous_index < base:
            # Up to the base everything is committed, hence the same in every leader's log.
            if not entries or entries[-1][1] <= base:
                return Stored(base)
            entries = [entry for entry in entries if entry[1] > base]
            previous_index = base
        elif journal.term_at(previous_index) != previous_term:
            return Stored(None, self._conflict_hint(previous_index, commit_index))
        for position, (command, index, _) in enumerate(entries):
            if index != previous_index + 1 + position:
                raise SafetyError("entries of another server are out of order")
            if command[:1] == MEMBERSHIP_TYPE:
                membership.decode_voters(command[1:])  # Raises before anything is changed.
        match = previous_index + len(entries)
        for position, (_, index, term) in enumerate(entries):
            if journal.term_at(index) != term:
                changed = self._replace_suffix(index, entries[position:], commit_index)
                return Stored(match, reconfigured=changed)
        return Stored(match)

    def encoded(self, first: int, last: int, bytes_max: int) -> tuple[int, bytes]:
        """Return the index of the last entry that fits, at least one, and the entries as bytes.

        Followers mostly lack the same entries, so results are kept until ``forget_encoded``.
        """
        if first > last or bytes_max == 0:
            return first - 1, b""
        key = (first, last, bytes_max)
        if (known := self._encoded.get(key)) is not None:
            return known
        base = self.journal.base_index
        selected: list[Entry] = []
        size = 0
        for position in range(first - base, last - base + 1):
            entry = self.journal.entries[position]
            size += len(entry[0])
            if selected and size > bytes_max:
                break
            selected.append(entry)
        result = self._encoded[key] = (selected[-1][1], encode_entries(selected))
        return result

    def forget_encoded(self) -> None:
        """Clear the cache of ``encoded``, whenever the log may change next."""
        self._encoded.clear()

    def installed(self, index: int, voters: tuple[ServerId, ...]) -> None:
        """Go on from a snapshot, after the journal was brought in line with it."""
        self.configurations.truncate(self.journal.last_index + 1)
        self.configurations.reset(Configuration(index, voters))

    def _conflict_hint(self, index: int, commit_index: int) -> int:
        """Return the first index of the term that conflicts: a round trip per term, not entry."""
        term = self.journal.term_at(index)
        while index > commit_index + 1 and self.journal.term_at(index - 1) == term:
            index -= 1
        return max(index, commit_index + 1)

    def _replace_suffix(self, first_index: int, entries: list[Entry], commit_index: int) -> bool:
        before = self.configurations.current
        if first_index <= self.journal.last_index:
            if first_index <= commit_index:
                raise SafetyError(
                    f"the committed entry {first_index} would be replaced",
                    hint="this server's state directory may be an old copy; "
                    "remove the server and let it join again",
                )
            self.journal.truncate(first_index)
            self.configurations.truncate(first_index)
        for command, index, term in entries:
            self.journal.append(command, index, term)
            if command[:1] == MEMBERSHIP_TYPE:
                self.configurations.append(index, membership.decode_voters(command[1:]))
        return before != self.configurations.current
