"""The messages about the pool's policy."""

from dataclasses import field

from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import Request
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import Answer, CallFor
from gpupool.remoting.protocol.messages.hello_messages import Done


@message(160)
class PolicyIs(Answer):
    """One version of the policy; version 0 and an empty text when there never was one."""

    version: int
    by: str
    at: Milliseconds
    packed: bytes  # ``policy_versions.unpack_text`` reads it


@message(80, rights=Rights.VIEWER)
class GetPolicy(CallFor[PolicyIs]):
    """Ask for the text of the pool's policy; version 0 stands for the one in force."""

    version: int = 0


@message(161)
class PolicyHistory(Answer):
    """The versions that are kept, without their texts, the latest last."""

    versions: tuple[PolicyIs, ...]


@message(81, rights=Rights.VIEWER)
class GetPolicyHistory(CallFor[PolicyHistory]):
    """Ask for the stored versions of the policy."""


@message(82, rights=Rights.OPERATOR)
class PutPolicy(CallFor[Done]):
    """Put a policy in force in the place of version ``base``; operators only."""

    packed: bytes  # made by ``policy_versions.pack_text``
    base: int


@message(162)
class PolicyVerdict(Answer):
    """``kind`` is that of a refusal, or empty. The lines explain it."""

    kind: str
    lines: tuple[str, ...]
    #: Milliseconds until leases can be suspended for the request; -1: none can, or it need not be.
    suspendable_in: int = field(default=-1, metadata=OPTIONAL)


@message(83, rights=Rights.VIEWER)
class CheckPolicy(CallFor[PolicyVerdict]):
    """Ask how the policy in force, or a draft, treats a user's request."""

    user: str
    request: Request | None = None
    packed: bytes = b""  # a draft; empty for the policy in force
