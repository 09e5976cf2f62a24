"""Checker of persisted votes: a server's votes and acknowledgements are on disk at a restart."""

from gpupool.consensus.protocol.raft_messages import FrameReader, decode_message
from gpupool.consensus.storage.journal import Journal
from gpupool.simulations.kernel.failure_reporter import FailureReporter

_KIND_AT = 18
"""Of a frame: behind its head of 17 bytes, a list's head and the number of the message's kind."""

_PROMISES = frozenset({2, 6})
"""A vote, and the answer to entries."""


class VotesDurable:
    """A vote or an acknowledgement that was sent outlives the loss of power.

    Within a term nothing takes back what a server acknowledged to the term's leader, so its disk
    has the entries, or promises of a later term.
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._acknowledged: dict[str, tuple[int, int]] = {}  # term and index, by machine
        self._voted: dict[str, int] = {}  # the latest term

    def forgot(self, machine: str) -> None:
        """Take note that a machine's disk has lost something by a fault, or is a new member's."""
        self._acknowledged.pop(machine, None)
        self._voted.pop(machine, None)

    def copied(self, machine: str, copy: str) -> None:
        """Hold a copy of a machine's disk to that machine's votes and acknowledgements alone.

        A copy before it had the same name, and another disk (seed 720809).
        """
        self.forgot(copy)
        if machine in self._acknowledged:
            self._acknowledged[copy] = self._acknowledged[machine]
        if machine in self._voted:
            self._voted[copy] = self._voted[machine]

    def sent(self, machine: str, frame: bytes) -> None:
        """Take note of a frame that leaves for another server."""
        if frame[_KIND_AT] not in _PROMISES or (body := FrameReader().body(frame)) is None:
            return
        message = decode_message(body)
        term = message["term"]
        if message["type"] == "response_vote":
            self._voted[machine] = max(term, self._voted.get(machine, 0))
        elif message["success"]:
            promise = (term, message["next_node_idx"] - 1)
            self._acknowledged[machine] = max(promise, self._acknowledged.get(machine, (0, 0)))

    def started(self, machine: str, journal: Journal) -> None:
        """Judge the journal on a machine's disk as its server starts."""
        term, index = self._acknowledged.get(machine, (0, 0))
        if journal.term < term or (journal.term == term and journal.last_index < index):
            text = f"entry {index} in term {term}, and starts with {journal.last_index}"
            self._failures.fail("promises-durable", f"{machine} acknowledged {text}")
        voted = self._voted.get(machine)
        if voted is None:
            return
        if journal.term < voted or (journal.term == voted and journal.vote is None):
            text = f"{machine} voted in term {voted}, and starts without that vote"
            self._failures.fail("promises-durable", text)
