"""The session itself: its greeting, its current device, its limits."""

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver import table
from gpupool.remoting.driver.client import WORDS, Area, Client
from gpupool.remoting.driver.snapshot import encode_snapshot


class Contexts(Area):
    """What concerns a device as a whole."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.posted = {
            table.SET_DEVICE: (1, self._set_device),
        }
        self.asked = {
            table.HELLO: (2, self._hello),
            table.GET_LIMIT: (1, self._get_limit),
            table.SET_LIMIT: (2, self._set_limit),
        }

    def _hello(self, protocol: int, _version: int) -> bytes:
        if protocol != 1:
            raise RemoteProtocolError("the client speaks another version of the CUDA door")
        snapshot = encode_snapshot(self.api, self.client.devices)
        self.api.runtime.setDevice(self.client.ordinals[self.client.device])
        return snapshot

    def _set_device(self, device: int) -> None:
        self.client.device = self.client.index(device)
        self.api.runtime.setDevice(self.client.ordinals[device])

    def _get_limit(self, limit: int) -> bytes:
        name = self.api.enumerated("CUlimit", limit)
        return WORDS[1].pack(int(self.api.call("cuCtxGetLimit", name)))

    def _set_limit(self, limit: int, value: int) -> bytes:
        self.api.call("cuCtxSetLimit", self.api.enumerated("CUlimit", limit), value)
        return b""
