"""What a client may ask for, checked before anything is done about it."""

from gpupool.pool.errors import AuthenticationError, UsageError
from gpupool.pool.model.state import Request
from gpupool.pool.policy.idleness import IDLE_TIMEOUT_MIN_S
from gpupool.pool.scheduling.filters import well_formed
from gpupool.pool.view import visible
from gpupool.remoting.protocol.messages import PROTOCOL, PROTOCOL_OLDEST, Hello

TEXT_LENGTH_MAX = 200
SERVER_NAME_COUNT_MAX = 64
SERVER_NAME_LENGTH_MAX = 64


def check_protocol(hello: Hello, server: str, version: str) -> None:
    """Check that a client, or a server that wants to join, can be understood here.

    Args:
        hello: its first message.
        server: the name of this server.
        version: of gpupool on this server.

    Raises:
        AuthenticationError: when it speaks another version of the protocol.
    """
    if PROTOCOL_OLDEST <= hello.protocol <= PROTOCOL:
        return
    other = "; or update the servers first" if hello.protocol > PROTOCOL else ""
    raise AuthenticationError(
        f"gpupool {visible(hello.version[:20])} cannot talk to server {server}, "
        f"which has gpupool {version}",
        why=f"this server speaks version {PROTOCOL} of the protocol, not {hello.protocol}",
        hint=f"install gpupool {version} on this machine{other}",
    )


def check_request(request: Request) -> None:
    """Check a client's request.

    Raises:
        UsageError: when it makes no sense, or is larger than it may be.
    """
    if len(request.id) != 16:
        raise UsageError("a request id has 16 bytes")
    if not 0 < request.count <= 256:
        raise UsageError("between 1 and 256 GPUs can be asked for")
    by_fraction = 0.0 < request.fraction <= 1.0 and request.memory == 0
    by_memory = request.fraction == 0.0 and 0 < request.memory <= 2**50
    if not by_fraction and not by_memory:
        raise UsageError("ask for a fraction above 0 and up to 1 of each GPU, or for memory")
    if request.idle_timeout_s and not IDLE_TIMEOUT_MIN_S <= request.idle_timeout_s <= 2**31:
        raise UsageError(f"an idle timeout is at least {IDLE_TIMEOUT_MIN_S:g} s")
    if len(request.servers) > SERVER_NAME_COUNT_MAX:
        hint = "--filter takes patterns, as 'server.name = gpu-*'"
        raise UsageError(f"a request names at most {SERVER_NAME_COUNT_MAX} servers", hint=hint)
    if max(map(len, request.servers), default=0) > SERVER_NAME_LENGTH_MAX:
        what = f"a server's name has at most {SERVER_NAME_LENGTH_MAX} characters"
        raise UsageError(what, hint='"gpupool status" lists them')
    if len(request.client) > TEXT_LENGTH_MAX or len(request.program) > TEXT_LENGTH_MAX:
        raise UsageError("the request's texts are too long")
    if not well_formed(request.filters):
        raise UsageError("the request's filters are malformed")
