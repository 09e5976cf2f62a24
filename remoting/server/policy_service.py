"""The calls about the pool's policy: show it, put one in force, explain it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from gpupool.pool.errors import ConflictError, DeniedError, GpupoolError, NotNowError, UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.policy import PACKED_SIZE_MAX, Policy
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import PoolState
from gpupool.pool.scheduling.policy_explain import explain
from gpupool.pool.scheduling.preemption import suspendable_in_ms
from gpupool.pool.transitions import policy_versions
from gpupool.pool.transitions.policy_versions import Draft
from gpupool.pool.transitions.uploads import parts_of
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.policy_text import REFUSED
from gpupool.remoting.server.actions import CompilePolicy
from gpupool.remoting.server.proposer import Decision
from gpupool.remoting.server.service_context import Client, Handler, ServiceContext, check_request

PUT_S = 5.0
"""For all parts of a document together, and its last command."""

COMPILE_COUNT_MAX = 32
"""Documents that wait to be compiled; one of each user."""


@dataclass(frozen=True, slots=True)
class _Compiling:
    """One call that waits for its document's compilation."""

    client: Client
    call: int
    then: Callable[[Draft], None]


class PolicyService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._numbers = itertools.count(1)
        self._compiling: dict[int, _Compiling] = {}

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of each call that is served here."""
        return {
            m.GetPolicy: self._get,
            m.GetPolicyHistory: self._history,
            m.CheckPolicy: self._check,
            m.PutPolicy: self._put,
        }

    def _get(self, client: Client, call: int, message: m.GetPolicy) -> None:
        context = self._context
        context.answer(client, call, policy_is(context.state, message.version))

    def _history(self, client: Client, call: int, _message: m.GetPolicyHistory) -> None:
        versions = tuple(
            m.PolicyIs(each.version, each.by, each.at, b"") for each in self._context.state.policies
        )
        self._context.answer(client, call, m.PolicyHistory(versions))

    def _check(self, client: Client, call: int, message: m.CheckPolicy) -> None:
        """Answer with the verdict of the policy, or of a draft, on a user's request."""
        if message.request is not None:
            check_request(message.request)

        def explained(policy: Policy | None) -> None:
            context = self._context
            state = replace(context.state, now=context.now_ms())
            if policy is not None:
                digest = sha256(message.packed).digest()
                version = state.policy.version + 1
                state = replace(state, policy=replace(policy, version=version, digest=digest))
            user = message.user or client.user
            kind, lines = explain(state, user[:64], message.request)
            wait_ms = None
            if message.request is not None and kind == RefusalKind.BUSY:
                wait_ms = suspendable_in_ms(state, user[:64], message.request)
            verdict = m.PolicyVerdict(kind, lines, -1 if wait_ms is None else wait_ms)
            context.answer(client, call, verdict)

        if message.packed:
            self._compile(client, call, message.packed, lambda draft: explained(draft.policy))
        else:
            explained(None)

    def _put(self, client: Client, call: int, message: m.PutPolicy) -> None:
        """Compile a document, replicate it in parts, and put it in force."""
        self._context.require_majority()
        self._compile(client, call, message.packed, partial(self._replicate, client, call, message))

    def _replicate(self, client: Client, call: int, message: m.PutPolicy, draft: Draft) -> None:
        context, current = self._context, self._context.state.policy
        data = policy_versions.pack_draft(draft)
        digest = policy_versions.digest_of(data)
        # A later version than this server knows may well be in force: the table decides.
        if message.base < current.version and current.digest != digest:
            raise _conflict(context.state, message.base)
        parts = parts_of(data)
        # Named by its content: sent again after a lost answer, the parts are the same.
        upload = sha256(digest + client.user.encode()).digest()[:16]
        queue: list[commands.Command] = [
            commands.StagePart(upload, number, part) for number, part in enumerate(parts)
        ]
        queue.append(
            commands.ApplyPolicy(upload, len(parts), digest, message.base, client.user),
        )
        deadline = context.clock.monotonic() + PUT_S

        def next_one(decision: Decision | None) -> None:
            if decision is not None and decision.result is None:
                why = decision.why
                error = GpupoolError("it is not known whether the policy is in force", why=why)
                context.answer(client, call, m.refused(error))
            elif decision is not None and decision.result is not None and not decision.result.ok:
                refusal = m.refused(_error(context.state, message, decision.result))
                context.answer(client, call, refusal)
            elif queue:
                left_s = max(0.1, deadline - context.clock.monotonic())
                context.proposer.propose(queue.pop(0), next_one, timeout_s=left_s, user=client.user)
            else:
                context.answer(client, call, m.Done(str(message.base + 1)))

        next_one(None)

    def _compile(
        self, client: Client, call: int, packed: bytes, then: Callable[[Draft], None]
    ) -> None:
        """Compile a document, and pass its draft to ``then``; answer the call when it is invalid.

        Raises:
            UsageError: when the document is too large to be one.
            NotNowError: when a document of this user waits, or too many of all users.
        """
        if len(packed) > PACKED_SIZE_MAX:
            raise UsageError(REFUSED, why="the document is too large")
        if any(each.client.user == client.user for each in self._compiling.values()):
            raise NotNowError(REFUSED, why="this server reads another document of yours")
        if len(self._compiling) >= COMPILE_COUNT_MAX:
            raise NotNowError(REFUSED, why=f"{COMPILE_COUNT_MAX} documents wait to be read")
        number = next(self._numbers)
        self._compiling[number] = _Compiling(client, call, then)
        now_ms = self._context.now_ms()
        self._context.actions.append(CompilePolicy(number, packed, now_ms))

    def compiled(self, number: int, result: Draft | GpupoolError) -> None:
        """Continue a call with its compiled document, or with the compilation's error."""
        compiling = self._compiling.pop(number)
        try:
            if isinstance(result, GpupoolError):
                raise result
            compiling.then(result)
        except GpupoolError as error:
            self._context.answer(compiling.client, compiling.call, m.refused(error))


def policy_is(state: PoolState, version: int) -> m.PolicyIs:
    """Return one version of the policy; 0 stands for the one in force.

    Raises:
        UsageError: when that version is not kept.
    """
    wanted = version or state.policy.version
    if not wanted:
        return m.PolicyIs(0, "", Milliseconds(0), policy_versions.pack_text(""))
    found = next((each for each in state.policies if each.version == wanted), None)
    if found is None:
        kept = ", ".join(str(each.version) for each in state.policies)
        why = f"kept are {kept}" if kept else "the pool has no policy yet"
        raise UsageError(f"version {wanted} of the policy is not kept", why=why)
    return m.PolicyIs(found.version, found.by, found.at, found.packed)


def _error(state: PoolState, message: m.PutPolicy, result: Result) -> GpupoolError:
    if result.kind == RefusalKind.CONFLICT and state.policy.version != message.base:
        return _conflict(state, message.base)
    return DeniedError(REFUSED, why=result.why)


def _conflict(state: PoolState, base: int) -> ConflictError:
    now = "the pool has no policy yet"
    if state.policies:
        now = f"{state.policies[-1].by} has applied version {state.policy.version}"
    return ConflictError(
        REFUSED,
        why=f"it was made from version {base}, and {now}" if base else now,
        hint="gpupool policy show, and make your changes to that",
    )
