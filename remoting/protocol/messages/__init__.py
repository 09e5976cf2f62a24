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
                 Cancel, AwaitGpus, Attach, Release       Done
    admin        GetView, GetTelemetry, ListTokens        ViewNow, TelemetryNow, Tokens
                 GetAudit, GetUsage, GetHistory           AuditNow, UsageIs, HistoryIs
                 RunChecks                                ChecksDone
                 Subscribe                                Done
    orders       CreateToken, RevokeToken, RenewToken     Done
                 EndLease
                 RemoveServer, DrainServer, DrainGpu,
                 LabelServer, SetClock, RotateCa,
                 RetireCa                                 Done
    policy       GetPolicy, GetPolicyHistory              PolicyIs, PolicyHistory
                 PutPolicy, CheckPolicy                   Done, PolicyVerdict
    backup       GetBackup                                BackupIs
                 PutPart, RestoreBackup                   Done
    membership   JoinPool                                 Joined
    (pushes)                                              CapacityAvailable, LeaseEnded,
                                                          LeaseNotice, Members, Update, Dismissed
"""

# The names of all modules are this package's own.
# ruff: noqa: F401
# pyright: reportUnusedImport=false

from gpupool.remoting.protocol.messages.admin_messages import (
    AuditNow,
    ChecksDone,
    GetAudit,
    GetHistory,
    GetTelemetry,
    GetUsage,
    GetView,
    HistoryIs,
    ListTokens,
    RunChecks,
    Subscribe,
    TelemetryNow,
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
from gpupool.remoting.protocol.messages.declaration import (
    BY_NUMBER,
    CALL_DECLARATIONS,
    CALL_NUMBER_MAX,
    NUMBERS,
    PUSH_MIN,
    Answer,
    Call,
    Message,
    Opening,
    Push,
    Rights,
    from_body,
    to_frame,
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
    LeaseEnded,
    LeaseNotice,
    Offered,
    OpenSession,
    Release,
    SessionOpened,
)
from gpupool.remoting.protocol.messages.membership_messages import Joined, JoinPool
from gpupool.remoting.protocol.messages.orders import (
    ORDER_SIZE,
    CreateToken,
    DrainGpu,
    DrainServer,
    EndLease,
    Issue,
    LabelServer,
    Order,
    RemoveServer,
    RenewToken,
    ResumeLease,
    RetireCa,
    RevokeToken,
    RotateCa,
    SetClock,
    SuspendLease,
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

#: Every message by its number on the wire, and the same for each kind.
KINDS = dict(sorted(BY_NUMBER.items()))
OPENINGS = {number: kind for number, kind in KINDS.items() if issubclass(kind, Opening)}
CALLS = {number: kind for number, kind in KINDS.items() if issubclass(kind, Call)}
ANSWERS = {number: kind for number, kind in KINDS.items() if issubclass(kind, Answer)}
PUSHES = {number: kind for number, kind in KINDS.items() if issubclass(kind, Push)}
