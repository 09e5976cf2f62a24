"""Random pools and commands for the property tests of the pool's rules."""

from hashlib import sha256

from hypothesis import strategies as st
from tests.pool.policy_kit import policy_commands

from gpupool.pool.model import commands as c
from gpupool.pool.model.forgetting import ForgetUser, digest_of
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.state import Filter, Gpu, Operator, Partition, Placement, Request, TokenKind
from gpupool.pool.scheduling.filters import KEYS, LABELS, Kind, parse_filter

MIB = 1 << 20
GIB = 1 << 30
SERVERS = tuple(ServerId(name * 12) for name in "abc")
USERS = ("ada", "bob")
TOKENS = {user: TokenId(user * 4) for user in USERS}
SERVER_TOKENS = tuple(TokenId(f"server-token-{n}") for n in range(3))
REQUESTS = tuple(RequestId(bytes([n]) * 16) for n in range(6))
CAS = (b"ca 1", b"ca 2", b"ca 3", b"", b"long" * 2000)
REASONS = st.sampled_from(["", "because", "x" * 500])


def hashed(certificate: bytes) -> bytes:
    return sha256(certificate).digest()


def gpus_of(server: ServerId) -> tuple[Gpu, ...]:
    """Return two whole GPUs of different size and one card that is cut into two instances."""
    card = GpuId(f"{server}-card")
    return (
        Gpu(GpuId(f"{server}-0"), 0, "Small", 8 * GIB, memory_reserved=GIB),
        Gpu(GpuId(f"{server}-1"), 1, "Large", 80 * GIB),
        Gpu(GpuId(f"{server}-2"), 2, "MIG", 10 * GIB, parent=card),
        Gpu(GpuId(f"{server}-3"), 3, "MIG", 10 * GIB, parent=card),
    )


GPU_IDS = tuple(gpu.id for server in SERVERS for gpu in gpus_of(server))

servers = st.sampled_from(SERVERS)
incarnations = st.sampled_from([1, 1, 1, 1, 2, 3]).map(Incarnation)
leases = st.integers(12, 40).map(LeaseId)
request_ids = st.sampled_from(REQUESTS)
users = st.sampled_from(USERS)
memories = st.sampled_from([0, 1, MIB, GIB, 4 * GIB, 8 * GIB, 40 * GIB, 80 * GIB, 2**62])

versions = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(
    lambda numbers: ".".join(map(str, numbers))
)
words = st.text("abzAZ09*?-_.", min_size=1, max_size=12)
VALUES: dict[Kind, st.SearchStrategy[str]] = {
    Kind.TEXT: words,
    Kind.LABEL: versions,
    Kind.ADDRESS: st.ip_addresses().map(str),
    Kind.SIZE: st.integers(1, 200).map(lambda n: f"{n}GiB") | st.just("1000001B"),
    Kind.VERSION: versions,
    Kind.SPEED: st.sampled_from(["10000", "25G", "1T"]),
    Kind.SWITCH: st.sampled_from(["yes", "no", "1"]),
}


@st.composite
def filter_texts(draw: st.DrawFn) -> str:
    """Return a filter as somebody could write it."""
    key = draw(st.sampled_from([*KEYS, f"{LABELS}rack"]))
    kind = KEYS.get(key, Kind.LABEL)
    ordered = kind not in (Kind.TEXT, Kind.SWITCH) and draw(st.booleans())
    operator = draw(st.sampled_from(["<", "<=", ">", ">="] if ordered else ["=", "!="]))
    values = draw(st.lists(VALUES[kind], min_size=1, max_size=1 if ordered else 3))
    return f"{key}{operator}{', '.join(values)}"


filters: st.SearchStrategy[Filter] = filter_texts().map(parse_filter)
malformed = st.builds(
    Filter, key=words, operator=st.sampled_from(Operator), values=st.lists(words).map(tuple)
)

requests = st.builds(
    Request,
    id=st.one_of(request_ids, st.just(RequestId(b"short"))),
    count=st.integers(0, 4),
    fraction=st.sampled_from([0.0, 0.001, 0.25, 0.5, 1.0, 7.0]),
    memory=memories,
    servers=st.sampled_from([(), ("a",), (SERVERS[1],), ("nobody",)]),
    across=st.booleans(),
    filters=st.lists(filters | malformed, max_size=2).map(tuple) | st.just(()),
    placement=st.sampled_from(Placement),
    client=REASONS,
    program=REASONS,
)

partitions = st.lists(
    st.builds(
        Partition,
        server=st.one_of(servers, st.just(ServerId("stranger"))),
        gpu=st.sampled_from([*GPU_IDS, GpuId("unknown")]),
        memory=memories,
    ),
    max_size=4,
).map(tuple)


@st.composite
def plausible_partitions(draw: st.DrawFn) -> tuple[Partition, ...]:
    """Return partitions that a real client could claim."""
    chosen = draw(st.lists(st.sampled_from(GPU_IDS), min_size=1, max_size=3, unique=True))
    memory = draw(st.sampled_from([GIB, 4 * GIB, 7 * GIB, 40 * GIB]))
    return tuple(Partition(ServerId(gpu[:12]), gpu, memory) for gpu in chosen)


@st.composite
def grants(draw: st.DrawFn) -> c.Grant:
    parts = draw(st.one_of(plausible_partitions(), plausible_partitions(), partitions))
    request = draw(requests)
    honest = draw(st.integers(0, 9)) > 0
    if honest:
        request = Request(draw(request_ids), len(parts), 0.5, client="c", program="p")
    user = draw(users)
    return c.Grant(
        request=request,
        user=user,
        token=TOKENS[user if honest else draw(users)],
        ticket_hash=bytes(32) if honest else draw(st.binary(max_size=40)),
        partitions=parts,
        incarnations={server: draw(incarnations) for server in SERVERS},
    )


def server_up(server: ServerId, incarnation: Incarnation, kept: int, shrink: bool) -> c.ServerUp:
    gpus = gpus_of(server)[:kept]
    if shrink:
        gpus = tuple(Gpu(g.id, g.index, g.name, g.memory_total // 2, parent=g.parent) for g in gpus)
    return c.ServerUp(
        server, incarnation, f"{server}:7470", "1", "580.2", "13.0", gpus, {}, accounts=True
    )


readings = st.dictionaries(
    st.sampled_from(GPU_IDS),
    st.builds(
        c.GpuReading,
        memory_foreign=st.sampled_from([-5, 0, GIB, 100 * GIB]),
        fault=st.sampled_from(["", "", "", "Xid 79"]),
    ),
    max_size=3,
)

POLICIES = (
    "[defaults]\nmax_gpus = 0.6\nidle_timeout = '2s'\n[user.bob]\nmax_leases = 1\n",
    "[class.x]\nusers = ['a*']\ngpus = ['Large']\npriority = 2\nmax_lease_time = '20s'\n"
    "[[reservation]]\nclass = 'x'\ncount = 2\n"
    "from = 1970-01-01T00:00:30\nto = 1970-01-02T00:00:00\n",
    "[pool]\nmax_memory = '80GiB'\n[[window]]\nfrom = '00:00:20'\nto = '00:02'\n"
    "leases = 'end'\ngrace = '1s'\n[window.pool]\nmax_memory = '8GiB'\n",
)
"""They change something within the minutes that a sequence of commands takes."""

staged = [part for text in POLICIES for part in policy_commands(text, 0)[:-1]]
"""Policies on their way into the table: to put one in force is one command more."""

apply_policies = st.sampled_from(
    [policy_commands(text, base)[-1] for text in POLICIES for base in (0, 0, 1, 2)]
)

commands = st.one_of(
    apply_policies,
    st.sampled_from(staged),
    st.builds(c.GiveNotice, lease=leases),
    st.builds(
        c.JoinServer,
        server=servers,
        name=servers.map(lambda s: s[0]),
        address=st.just("host:1"),
        witness=st.booleans(),
        token=st.sampled_from([None, *SERVER_TOKENS, TOKENS["ada"]]),
    ),
    st.builds(
        server_up, servers, incarnations, st.sampled_from([4, 4, 4, 2]), st.sampled_from([False])
    ),
    st.builds(server_up, servers, incarnations, st.just(4), st.booleans()),
    st.builds(c.ServerContact, server=servers, incarnation=incarnations, reachable=st.booleans()),
    st.builds(c.RemoveServer, server=servers, by=REASONS),
    st.builds(c.ReportGpus, server=servers, incarnation=incarnations, readings=readings),
    st.builds(c.DrainServer, server=servers, reason=st.none() | REASONS, by=REASONS),
    st.builds(
        c.DrainGpu,
        server=servers,
        gpu=st.sampled_from([*GPU_IDS, GpuId("unknown")]),
        reason=st.none() | REASONS | st.just("auto: hot"),
        by=REASONS,
        sign=st.sampled_from(["", "thermal"]),
        onset=st.integers(0, 3_000).map(Milliseconds),
    ),
    st.builds(c.NoteBackup, by=REASONS),
    st.builds(
        ForgetUser,
        salt=st.sampled_from([b"", bytes(16), b"1" * 16]),
        digest=st.sampled_from([b"", digest_of(bytes(16), USERS[0]), bytes(32)]),
        by=REASONS,
    ),
    st.builds(
        c.SetSilence,
        check=st.sampled_from(["", "disk", "clock"]),
        server=st.sampled_from(["", "a"]),
        subject=st.sampled_from(["", "free"]),
        reason=st.none() | REASONS,
        until=st.integers(0, 9_000).map(Milliseconds),
        by=REASONS,
        order=st.sampled_from([b"", b"1" * 16, b"2" * 16]),
    ),
    st.builds(
        c.SetSilence,
        check=st.sampled_from(["", "disk", "clock"]),
        server=st.sampled_from(["", "a"]),
        subject=st.sampled_from(["", "free"]),
        reason=st.none() | REASONS,
        until=st.integers(0, 9_000).map(Milliseconds),
        by=REASONS,
        order=st.sampled_from([b"", b"1" * 16, b"2" * 16]),
    ),
    st.builds(
        c.LabelServer,
        server=servers,
        labels=st.dictionaries(words, words, max_size=2),
        without=st.lists(words, max_size=2).map(tuple),
        by=REASONS,
    ),
    *[grants()] * 9,
    st.builds(
        c.CancelRequest,
        request=request_ids,
        reason=REASONS,
        user=st.sampled_from(["", *USERS]),
        successor=st.none() | request_ids,
    ),
    *[st.builds(c.EndLease, lease=leases, reason=REASONS, by=REASONS)] * 3,
    *[
        st.builds(
            c.SuspendLease,
            lease=leases,
            why=REASONS,
            by=st.sampled_from(["", *USERS]),
            operator=st.booleans(),
            for_request=st.none() | request_ids,
            order=st.sampled_from([b"", b"", bytes(16), b"short"]),
        )
    ]
    * 2,
    *[
        st.builds(
            c.ConfirmSuspended,
            lease=leases,
            server=servers,
            incarnation=incarnations,
            number=st.integers(12, 60),
            bytes=st.sampled_from([-1, 0, GIB]),
        )
    ]
    * 2,
    st.builds(
        c.RefuseSuspension,
        lease=leases,
        server=servers,
        incarnation=incarnations,
        number=st.integers(12, 60),
        reason=REASONS,
    ),
    st.builds(
        c.ResumeLease,
        lease=leases,
        by=st.sampled_from(["", *USERS]),
        operator=st.booleans(),
        order=st.sampled_from([b"", bytes(16), b"y" * 16]),
    ),
    st.builds(
        c.ConfirmResumed,
        lease=leases,
        server=servers,
        incarnation=incarnations,
        number=st.integers(12, 60),
    ),
    st.builds(
        c.MoveLease,
        lease=leases,
        server=servers,
        by=st.sampled_from(USERS),
        operator=st.booleans(),
        gpus=st.lists(st.sampled_from(GPU_IDS), max_size=2).map(tuple),
        to=st.lists(st.sampled_from(GPU_IDS), max_size=2).map(tuple),
        order=st.sampled_from([b"", bytes(16), b"y" * 16]),
    ),
    st.builds(
        c.RelocateLease,
        lease=leases,
        target=servers,
        by=st.sampled_from(USERS),
        operator=st.booleans(),
        order=st.sampled_from([b"", bytes(16), b"y" * 16]),
    ),
    st.builds(
        c.ConfirmRelocated,
        lease=leases,
        server=servers,
        incarnation=incarnations,
        number=st.integers(12, 60),
    ),
    st.builds(
        c.RefuseRelocation,
        lease=leases,
        number=st.integers(12, 60),
        reason=REASONS,
        server=st.sampled_from([None, *SERVERS]),
        incarnation=incarnations,
    ),
    st.builds(
        c.NoteIdle, lease=leases, server=servers, incarnation=incarnations, idle=st.booleans()
    ),
    *[
        st.builds(
            c.FreeLease, lease=leases, server=servers, incarnation=incarnations, number=st.just(0)
        )
    ]
    * 3,
    st.builds(
        c.FreeLease,
        lease=leases,
        server=servers,
        incarnation=incarnations,
        number=st.integers(0, 40),
    ),
    users.flatmap(
        lambda user: st.builds(
            c.Wait,
            request=requests,
            user=st.just(user),
            token=st.just(TOKENS[user]),
            reason=REASONS,
        )
    ),
    st.builds(
        c.CreateToken,
        token=st.sampled_from([*TOKENS.values(), *SERVER_TOKENS]),
        kind=st.sampled_from(TokenKind),
        user=st.sampled_from(["", *USERS]),
        secret_hash=st.sampled_from([bytes(32), b"short"]),
        expires_at=st.sampled_from([0, 10**6, 10**9]).map(Milliseconds),
        by=REASONS,
        uses=st.sampled_from([1, 2, 0]),
    ),
    st.builds(
        c.RenewToken,
        token=st.sampled_from([*TOKENS.values(), TokenId("none")]),
        expires_at=st.sampled_from([0, 10**6, 10**9]).map(Milliseconds),
        by=REASONS,
    ),
    st.builds(c.RevokeToken, token=st.sampled_from([TOKENS["bob"], TokenId("none")]), by=REASONS),
    st.builds(c.CreatePool, cluster_id=st.just("other"), name=REASONS, data_encryption=REASONS),
    st.just(c.Tick()),
    st.builds(c.RotateCa, old=st.sampled_from(CAS), new=st.sampled_from(CAS), by=REASONS),
    st.builds(c.RetireCa, ca=st.sampled_from(CAS).map(hashed), force=st.booleans(), by=REASONS),
    st.builds(
        c.ReportIssuer,
        server=servers,
        incarnation=incarnations,
        issuer=st.sampled_from(CAS).map(hashed),
    ),
)

pauses, lifetimes = st.sampled_from([0, 1, 100, 20_000]), st.sampled_from([0, 0, 50])
steps = st.tuples(
    st.lists(st.tuples(apply_policies, pauses, st.just(0)), max_size=1),
    st.lists(st.tuples(commands, pauses, lifetimes), min_size=15, max_size=50),
).map(lambda both: [*both[0], *both[1]])
"""Commands with the milliseconds since the one before, and their time to live."""


def founding() -> list[c.Command]:
    """Return the commands that make a pool of three servers, all up, with two users."""
    found: list[c.Command] = [
        c.CreatePool("cluster", "lab", "tls"),
        c.JoinServer(SERVERS[0], "a", "a:1", False, None),
    ]
    far = Milliseconds(10**12)
    for token, server in zip(SERVER_TOKENS, SERVERS[1:], strict=False):
        found.append(c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), far, "root"))
        found.append(c.JoinServer(server, server[0], f"{server[0]}:1", False, token))
    for user, token in TOKENS.items():
        found.append(c.CreateToken(token, TokenKind.USER, user, bytes(32), far, "root"))
    found += [server_up(server, Incarnation(1), 4, False) for server in SERVERS]
    return found
