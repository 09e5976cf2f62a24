"""The limits of the policy, for the page of users: who may have how much at this moment."""

from dataclasses import dataclass, replace

from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.model.policy import UNIT, Policy, Zone
from gpupool.pool.policy.policy_document import PolicyTextError, parse_policy
from gpupool.pool.policy.rulebook import Rulebook
from gpupool.pool.transitions.policy_versions import UnpackError, unpack_text
from gpupool.pool.view import visible
from gpupool.remoting.protocol.time_zones import zone_of

MIB = 1 << 20
SCALES = {"max_gpus": UNIT, "max_memory": MIB, "max_leases": 1}
"""Of each limit: what the page's numbers are multiples of."""

NO_ZONES = "hours of the policy are left out: this machine does not know their time zone"


@dataclass(frozen=True, slots=True)
class _Compiled:
    version: int
    book: Rulebook
    problem: str = ""


class PolicyLimits:
    """Compiles a policy once for each version."""

    def __init__(self) -> None:
        self._compiled = _Compiled(0, Rulebook(Policy()))

    async def told(self, source: PoolSource, now_ms: int, user: str = "") -> dict[str, object]:
        """Return the class, the department and the limits of each user who has or wants anything.

        ``user`` is one besides, who may have nothing.
        """
        snapshot = source.known()
        view = snapshot.view
        if view.policy_version != self._compiled.version:
            self._compiled = await _compile(source, view.policy_version, now_ms)
        moment = self._compiled.book.moment(now_ms)
        users = {each.user for each in view.leases} | {each.user for each in view.waiting}
        rows: dict[str, object] = {}
        for name in sorted(users | ({user} if user else set())):
            terms = moment.terms(name)
            rows[visible(name)] = {
                "class": visible(terms.group),
                "department": visible(terms.department),
                "limits": [
                    [cap.holder, cap.dimension, round(cap.limit / SCALES[cap.dimension], 3)]
                    for cap in terms.caps
                ],
            }
        return {"users": rows, "problem": self._compiled.problem}


async def _compile(source: PoolSource, version: int, now_ms: int) -> _Compiled:
    """Return a version's rules; without its hours where their time zones are not known."""
    if not version:
        return _Compiled(0, Rulebook(Policy()))
    found = await source.policy()
    unknown: list[str] = []

    def zone(name: str) -> Zone:
        known = zone_of(name, now_ms)
        if known is None:
            unknown.append(name)
        return known or Zone(name, (), (0,))

    try:
        policy = parse_policy(unpack_text(found.packed), zone)
    except (PolicyTextError, UnpackError) as error:
        problem = f"the policy cannot be read here: {visible(str(error)[:200])}"
        return _Compiled(version, Rulebook(Policy()), problem)
    if not unknown:
        return _Compiled(version, Rulebook(policy))
    return _Compiled(version, Rulebook(replace(policy, windows=(), reservations=())), NO_ZONES)
