"""A policy's document made into a draft, with the time zones of this machine's database."""

from gpupool.pool.errors import UsageError
from gpupool.pool.policy.policy_document import PolicyTextError, parse_policy
from gpupool.pool.transitions.policy_versions import Draft, UnpackError, unpack_text
from gpupool.remoting.protocol.time_zones import zone_of

REASON_LENGTH_MAX = 500

REFUSED = "the policy is not put in force"
CHECK_HINT = "gpupool policy check FILE"


def compile_text(packed: bytes, now_ms: int) -> Draft:
    """Return the draft of a packed document, in this process.

    Raises:
        UsageError: when it is no policy.
    """
    try:
        text = unpack_text(packed)
        return Draft(packed, parse_policy(text, lambda name: zone_of(name, now_ms)))
    except UnpackError as error:
        raise UsageError(REFUSED, why=str(error)) from error
    except PolicyTextError as error:
        why = str(error)[:REASON_LENGTH_MAX]
        raise UsageError(REFUSED, why=why, hint=CHECK_HINT) from error
