"""Pinned memory that stands for the client's in graphs that copy it: slots.

A graph's node reads and writes a slot. The client fills it before each launch of the graph, and
asks behind the launch for what the graph writes there.
"""

from collections import deque
from dataclasses import dataclass, field

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.graphs.early_pieces import EarlyPieces
from gpupool.remoting.driver_api.executor.memory.staging_buffers import Buffer
from gpupool.remoting.driver_api.executor.sync_waiter import Download, Lent, Owner, Window

SLOTS_SIZE_MAX = 1 << 30
"""Bytes of slots that a client may have, all together."""

PIECES_MAX = 4096


@dataclass(slots=True)
class Slot:
    """Memory of the worker in place of the client's."""

    buffer: Buffer
    size: int
    device: int
    owner: Owner = field(default_factory=Owner)


@dataclass(slots=True)
class Ended:
    """A slot that nothing uses once launches are over: of the device and the event behind each."""

    slot: Slot
    events: list[tuple[int, int]]


class Slots(HandlerGroup):
    """The slots of a client process."""

    def __init__(self, client: Client, early: EarlyPieces) -> None:
        super().__init__(client)
        self._early = early
        self._slots: dict[int, Slot] = {}
        self._held = 0
        self.failed: set[int] = set()
        """Executable graphs with a failed last launch."""
        # Of an executable graph: the device and an event behind its last launch.
        self._last: dict[int, tuple[int, int]] = {}
        self._gone: deque[tuple[int, int]] = deque()  # the same of executables that are gone
        self._ended: deque[Ended] = deque()
        self._read_slots: list[Slot] = []  # nothing uses them but downloads
        self.methods = {
            "SLOT_MAKE": self._make,
            "SLOT_WRITE": self._write,
            "SLOT_READ": self._read,
            "SLOT_EARLY": self._read_early,
            "SLOT_FREE": self._free,
        }

    def address(self, number: int, offset: int, size: int) -> int:
        """Return where ``size`` bytes of a slot lie.

        Raises:
            KeyError: when there is no such slot.
            CudaError: when it is smaller.
        """
        slot = self._slots[number]
        if size > slot.size or offset > slot.size - size:
            raise CudaError(INVALID_VALUE, "cuGraphAddMemcpyNode")
        return slot.buffer.address + offset

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the slot in which an address lies, and how far behind its start."""
        for number, slot in self._slots.items():
            if 0 <= address - slot.buffer.address < slot.size:
                return number, address - slot.buffer.address
        return None

    def _make(self, number: int, size: int) -> None:
        self._sweep()
        if number in self._slots or not size:
            raise RemoteProtocolError("a slot that cannot be made")
        if self._held + size > SLOTS_SIZE_MAX:
            self.waiter.deliver()  # downloads that are over may keep slots
            self._sweep()
        if self._held + size > SLOTS_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuGraphAddMemcpyNode")
        device = self.client.device
        self._slots[number] = Slot(self.waiter.take(device, size), size, device)
        self._held += size

    def _free(self, number: int) -> None:
        slot = self._slots.pop(number)
        # Executables that are still there may have had this slot until now.
        for executable in list(self._last):
            self._behind(executable)
        self._ended.append(Ended(slot, list(self._gone)))
        self._gone.clear()
        self._sweep()

    def _sweep(self) -> None:
        """Let go of slots that ended, once no launch that used them runs and no download is left.

        What a slot waits for, those that end later wait for as well.
        """
        while self._ended:
            ended = self._ended[0]
            ended.events = [one for one in ended.events if not self._over(*one)]
            if ended.events:
                break
            self._read_slots.append(self._ended.popleft().slot)
        left: list[Slot] = []
        for slot in self._read_slots:
            if slot.owner.windows:
                left.append(slot)
                continue
            self._held -= slot.size
            self.waiter.give(slot.device, slot.buffer)
        self._read_slots = left

    def _over(self, device: int, event: int) -> bool:
        if not self.api.done(event):
            return False
        self.waiter.give_event(device, event)
        return True

    def _write(self, number: int, offset: int, size: int, data: memoryview) -> None:
        slot = self._slots.get(number)
        if slot is None or size > slot.size or offset > slot.size - size:
            self.client.skip_bulk()
            raise CudaError(INVALID_VALUE, "cuGraphLaunch")
        target = slot.buffer.view[offset : offset + size]
        if not self.client.record.bulk:
            target[:] = data
            return
        if size != self.client.record.bulk:
            raise RemoteProtocolError("malformed bytes behind a record")
        self.session.reader.into(target)
        self.client.record.bulk = 0

    def _read(self, executable: int, stream: int, count: int, pieces: memoryview) -> None:
        """Send the bytes that a launch writes to slots after its end, as client downloads.

        Of one that failed nothing comes, as of copies that fail.
        """
        if count > PIECES_MAX:
            raise RemoteProtocolError("malformed record")
        if executable in self.failed:
            count, pieces = 0, memoryview(b"")
        early = self._early.end(executable)
        while self._gone and self._over(*self._gone[0]):
            self._gone.popleft()
        device, handle = self.client.device, self.streams[stream]
        if self._last.get(executable, (-1, 0))[0] != device:
            self._behind(executable)
            self._last[executable] = (device, self.waiter.event(device))
        self.api.record(self._last[executable][1], handle)
        if not count and not early:
            return
        event = self.waiter.event(device)
        self.api.record(event, handle)
        lent = Lent(event, count + len(early))
        for download in early:
            download.device = device
            download.buffer = Window(event, download.buffer.view, lent)
            self.waiter.download(download)
        for number, offset, size, wanted in WORDS[4].iter_unpack(pieces):
            window = Window(event, self._view(number, offset, size), lent)
            owner = self._slots[number].owner
            self.waiter.download(Download(wanted, device, window, size, owner=owner))

    def _read_early(self, executable: int, count: int, pieces: memoryview) -> None:
        """Note the pieces that a launch copies out before its host functions."""
        if count > PIECES_MAX:
            raise RemoteProtocolError("malformed record")
        launch = self._early.begin(executable, count)
        for number, offset, size, wanted, copy in WORDS[5].iter_unpack(pieces):
            # Its end comes with the record behind the launch.
            window = Window(0, self._view(number, offset, size), Lent(0, 0))
            owner = self._slots[number].owner
            found = Download(wanted, self.client.device, window, size, owner=owner)
            launch.downloads.append((copy, found))

    def _view(self, number: int, offset: int, size: int) -> memoryview:
        self.address(number, offset, size)
        return self._slots[number].buffer.view[offset : offset + size]

    def forget(self, executable: int) -> None:
        """Note that an executable graph is gone, though its last launch may still run."""
        self.failed.discard(executable)
        self._behind(executable)

    def _behind(self, executable: int) -> None:
        """Keep an executable's last launch for slots to wait on; its next launch is separate."""
        last = self._last.pop(executable, None)
        if last is not None:
            self._gone.append(last)
