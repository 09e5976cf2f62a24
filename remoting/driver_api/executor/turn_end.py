"""A wait for all work of this client process on a device, as at the end of a lease's turn."""

from gpupool.remoting.driver_api.executor.client_state import Client
from gpupool.remoting.worker.launch_gate import LaunchGate


def await_work(client: Client) -> None:
    """Wait for all that was issued to the current device; what fails is not told here."""
    # To wait for a context, or for the legacy stream, would spoil the captures of its streams.
    with client.capture_lock:
        if not client.captures:
            client.api.runtime.deviceSynchronize()
            return
    for stream in list(client.streams.values()):
        try:
            if stream and not int(client.api.call("cuStreamIsCapturing", stream)):
                client.api.runtime.streamSynchronize(stream)
        except client.api.errors:
            continue  # it has ended meanwhile


class TurnEnd:
    """Waits for the work of a device, on a thread of the gate."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._api = client.api

    def follow(self, gate: LaunchGate) -> None:
        """Have the gate ask here what is under way."""
        gate.drain = self._drain
        gate.is_awaited = lambda: bool(self._client.session.began)

    def _drain(self, device: int) -> None:
        """Wait for all that was issued; a failure is the program's, which hears of it itself."""
        self._api.runtime.setDevice(self._client.ordinals[device])
        await_work(self._client)
