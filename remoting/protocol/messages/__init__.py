"""Every control message as a frozen dataclass, one module for each service.

A client opens with ``Hello`` (or ``FetchCa``, alone, before it has a CA to trust), is answered by
``Welcome`` or ``Refused``, and then makes calls. A call carries a number of the client's choice,
and its one answer the same number; pushes from the server carry number 0. Any call may be answered
by ``Refused``. The class of each message declares its number on the wire, and that of a call the
answer and the rights: see ``declaration``. The drawing of it all::

    module       client                                   server
    session      Hello, FetchCa                           Welcome, CaCertificate
                 Ping                                     Done
    leases       Ask, Claim, OpenSession                  Offered, Claimed, SessionOpened
                 Cancel, AwaitGpus, Attach, Release,
                 GoOn                                     Done
    admin        GetView, GetTelemetry, ListTokens        ViewNow, TelemetryNow, Tokens
                 GetAudit, GetUsage, GetHistory           AuditNow, UsageIs, HistoryIs
                 RunChecks, MeasureBandwidth              ChecksDone, BandwidthIs
                 Subscribe, SubscribeTelemetry            Done
    orders       CreateToken, RevokeToken, RenewToken     Done
                 RemoveServer, DrainServer, DrainGpu,
                 LabelServer, SetClock, RotateCa,
                 RetireCa, SetSilence, ForgetUser         Done
    lease_orders EndLease, SuspendLease, ResumeLease,     Done
                 MoveLease, RelocateLease                 Done
    policy       GetPolicy, GetPolicyHistory              PolicyIs, PolicyHistory
                 PutPolicy, CheckPolicy                   Done, PolicyVerdict
    backup       GetBackup                                BackupIs
                 PutPart, RestoreBackup                   Done
    membership   JoinPool                                 Joined
    (pushes)                                              CapacityAvailable, LeaseEnded,
                                                          LeaseNotice, LeaseLeaving, Members,
                                                          Update, TelemetryUpdate, Dismissed
"""

# The names of all modules are this package's own.
# ruff: noqa: F401
# pyright: reportUnusedImport=false

import importlib
from typing import TYPE_CHECKING

from gpupool.remoting.protocol.messages import declaration
from gpupool.remoting.protocol.messages.declaration import (
    CALL_NUMBER_MAX,
    LATER,
    PUSH_MIN,
    Answer,
    Call,
    Encoded,
    Message,
    Opening,
    Outgoing,
    Push,
    Rights,
    answer_of,
    declare_all,
    from_body,
    kind_of,
    push_frame,
    to_frame,
    type_of,
)
from gpupool.remoting.protocol.messages.hello_messages import (
    PROTOCOL,
    PROTOCOL_OLDEST,
    CaCertificate,
    Dismissed,
    Done,
    FetchCa,
    Hello,
    Member,
    Members,
    Ping,
    Refused,
    Welcome,
    refused,
    to_error,
)
from gpupool.remoting.protocol.messages.lease_messages import (
    Ask,
    Attach,
    AwaitGpus,
    Cancel,
    CapacityAvailable,
    Claim,
    Claimed,
    ClaimOutcome,
    GoOn,
    LeaseEnded,
    LeaseLeaving,
    LeaseNotice,
    Offered,
    OpenSession,
    Release,
    SessionOpened,
)

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages.account_orders import ForgetUser
    from gpupool.remoting.protocol.messages.admin_messages import (
        AuditNow,
        BandwidthIs,
        ChecksDone,
        GetAudit,
        GetHistory,
        GetTelemetry,
        GetUsage,
        GetView,
        HistoryIs,
        ListTokens,
        MeasureBandwidth,
        RunChecks,
        Subscribe,
        SubscribeTelemetry,
        TelemetryNow,
        TelemetryUpdate,
        Tokens,
        TokenState,
        TokenView,
        Update,
        UsageIs,
        ViewNow,
    )
    from gpupool.remoting.protocol.messages.backup_messages import (
        BackupIs,
        GetBackup,
        PutPart,
        RestoreBackup,
    )
    from gpupool.remoting.protocol.messages.lease_orders import (
        EndLease,
        MoveLease,
        RelocateLease,
        ResumeLease,
        SuspendLease,
    )
    from gpupool.remoting.protocol.messages.membership_messages import Joined, JoinPool
    from gpupool.remoting.protocol.messages.orders import (
        ORDER_SIZE,
        CreateToken,
        DrainGpu,
        DrainServer,
        Issue,
        LabelServer,
        Order,
        RemoveServer,
        RenewToken,
        RetireCa,
        RevokeToken,
        RotateCa,
        SetClock,
        SetSilence,
    )
    from gpupool.remoting.protocol.messages.policy_messages import (
        CheckPolicy,
        GetPolicy,
        GetPolicyHistory,
        PolicyHistory,
        PolicyIs,
        PolicyVerdict,
        PutPolicy,
    )

    # All messages are imported when one of these tables is read.
    BY_NUMBER: dict[int, type[Message]]
    NUMBERS: dict[type[Message], int]
    CALL_DECLARATIONS: dict[type[Call], declaration.CallDeclaration]
    KINDS: dict[int, type[Message]]
    OPENINGS: dict[int, type[Opening]]
    CALLS: dict[int, type[Call]]
    ANSWERS: dict[int, type[Answer]]
    PUSHES: dict[int, type[Push]]
else:

    def __getattr__(name: str) -> object:
        """Import what is first used now: a module of messages, or all for a table of them."""
        value = None if name.startswith("_") else _table(name) or _found_later(name)
        if value is None:
            raise AttributeError(f"there is no message {name}")
        globals()[name] = value
        return value


def _table(name: str) -> object:
    if name not in ("BY_NUMBER", "NUMBERS", "CALL_DECLARATIONS", "KINDS", *_BASES):
        return None
    declare_all()
    kinds = dict(sorted(declaration.BY_NUMBER.items()))
    globals().update({kind.__name__: kind for kind in kinds.values()})
    if name in _BASES:
        return {number: kind for number, kind in kinds.items() if issubclass(kind, _BASES[name])}
    return kinds if name == "KINDS" else getattr(declaration, name)


_BASES = {"OPENINGS": Opening, "CALLS": Call, "ANSWERS": Answer, "PUSHES": Push}


def _found_later(name: str) -> object:
    modules = (importlib.import_module(f"{__name__}.{each}") for each in LATER)
    return next((getattr(each, name) for each in modules if hasattr(each, name)), None)
