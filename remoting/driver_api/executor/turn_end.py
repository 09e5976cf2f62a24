"""The end of a lease's turn on a GPU: all work of this client process is waited for."""

from gpupool.remoting.driver_api.executor.api import CudaError
from gpupool.remoting.driver_api.executor.client_state import Client
from gpupool.remoting.worker.launch_gate import LaunchGate


class TurnEnd:
    """Waits for the work of a device, on a thread of the gate."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._api = client.api

    def follow(self, gate: LaunchGate) -> None:
        """Let the launch gate drain pending work through this object."""
        gate.drain = self._drain
        gate.is_awaited = lambda: bool(self._client.session.began)

    def _drain(self, device: int) -> None:
        """Wait for all that was issued; a failure is the program's, which hears of it itself."""
        client, runtime = self._client, self._api.runtime
        runtime.setDevice(client.ordinals[device])
        # To wait for a context, or for the legacy stream, would spoil the captures of its streams.
        with client.captures.lock:
            if not client.captures.streams:
                runtime.deviceSynchronize()
                return
        for stream in list(client.streams.values()):
            try:
                if stream and not int(self._api.call("cuStreamIsCapturing", stream)):
                    runtime.streamSynchronize(stream)
            except CudaError:
                continue  # it has ended meanwhile
