"""Log entries and their effects, as bytes: commands, results, tables, backups.

A script of commands makes a pool whose table uses every field that a table has. What each of them
answers is recorded, and the whole table after some of them.
"""

import dataclasses
import json
from collections.abc import Callable
from hashlib import sha256

import pytest
from tests.golden.recorded import GOLDEN, is_rewriting, read
from tests.golden.samples import bare, enums_of, full

from gpupool.consensus.protocol import closed_cbor
from gpupool.pool.model import commands
from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import Command, wrap
from gpupool.pool.model.forgetting import digest_of
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.policy import Zone
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import (
    Filter,
    Gpu,
    Operator,
    Partition,
    Placement,
    PoolState,
    Request,
    TokenKind,
)
from gpupool.pool.policy.policy_document import parse_policy
from gpupool.pool.transitions import backup, clock_setting, leases, policy_versions
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.backup import make_backup, to_file
from gpupool.pool.transitions.uploads import parts_of

FILE = "table.txt"
GIB = 1 << 30
START_MS = 1_790_000_000_000
"""At 14:13:20 UTC; each command comes a tenth of a second after the one before."""

EMPTY = PoolState()
FAR = Milliseconds(2**52)
ONE = Incarnation(1)
A, B, C = (ServerId(letter * 12) for letter in "abc")
POLICY = """\
[pool]
max_memory = "900GiB"
[defaults]
max_gpus = 6.5
max_lease_time = "10h"
idle_timeout = "1h"
[class.lab]
users = ["ada", "b*"]
gpus = ["NVIDIA *"]
priority = 3
data_encryption = "off"
[user.ada]
max_leases = 9
[[window]]
name = "night"
days = ["mon", "fri"]
from = "20:00"
to = "08:00"
zone = "Far/Away"
leases = "end"
grace = "5m"
[window.defaults]
max_gpus = "none"
[[window]]
name = "exam"
from = "14:13:23"
to = "14:30"
leases = "end"
grace = "1m"
[window.pool]
max_memory = "8GiB"
[[reservation]]
name = "course"
class = "lab"
count = 2
gpus = ["NVIDIA *"]
servers = ["rack=1"]
from = 2030-01-07T09:00:00
to = 2030-01-07T12:00:00
"""


def zone(name: str) -> Zone:
    """Return a zone that no database can change."""
    if name == "UTC":
        return Zone(name, (), (0,))
    return Zone(name, (START_MS, START_MS + 10**10), (3600, 7200, -3600))


def command_samples() -> dict[str, tuple[int, int, Command]]:
    """Return two samples of each command with its time and its time to live, by its name."""
    found: dict[str, tuple[int, int, Command]] = {}
    for name, kind in commands.KINDS.items():
        found[f"command {name} full"] = START_MS, 1500, full(kind, name)
        found[f"command {name} bare"] = 7, 0, bare(kind)
    return found


def command_bytes() -> dict[str, bytes]:
    """Return each sample as its log entry's content, and the values of its enumerations."""
    found = {
        name: closed_cbor.encode(wrap(command, at_ms=at_ms, ttl_ms=ttl_ms))
        for name, (at_ms, ttl_ms, command) in command_samples().items()
    }
    for name, kind in commands.KINDS.items():
        for place, members in enums_of(kind, name).items():
            found[f"values {place}"] = _text(json.dumps(sorted(m.value for m in members)))
    for place, members in enums_of(PoolState, "table").items():
        found[f"values {place}"] = _text(json.dumps(sorted(m.value for m in members)))
    return found


# --- documents -----------------------------------------------------------------------------------


def compressed(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the recorded bytes, if any: different versions of zlib compress differently."""
    known = read(FILE) if (GOLDEN / FILE).exists() else {}
    return known[name] if name in known and not is_rewriting() else make()


def policy_text() -> bytes:
    return compressed("packed policy text", lambda: policy_versions.pack_text(POLICY))


def draft() -> policy_versions.Draft:
    return policy_versions.Draft(policy_text(), parse_policy(POLICY, zone))


def policy_draft() -> bytes:
    return compressed("packed policy draft", lambda: policy_versions.pack_draft(draft()))


def document(data: bytes, base: int) -> list[Command]:
    """Return the commands that put a packed policy in force."""
    digest = policy_versions.digest_of(data)
    parts = parts_of(data)
    found: list[Command] = [commands.StagePart(digest[:16], n, p) for n, p in enumerate(parts)]
    return [*found, commands.ApplyPolicy(digest[:16], len(parts), digest, base, "root")]


def restoring(packed: list[bytes], by: str) -> list[Command]:
    """Return the commands that restore a packed backup into the table."""
    digest = policy_versions.digest_of(b"".join(packed))
    found: list[Command] = [commands.StagePart(digest[:16], n, p) for n, p in enumerate(packed)]
    return [*found, commands.RestoreBackup(digest[:16], len(packed), digest, by)]


# --- the script ----------------------------------------------------------------------------------


def gpus_of(server: str) -> tuple[Gpu, ...]:
    card = GpuId(f"GPU-{server}-card")
    return (
        Gpu(
            GpuId(f"GPU-{server}-0"), 0, "NVIDIA H200", 140 * GIB, GIB // 2, GIB,
            compute_capability="9.0", pci_bus_id="0000:01:00.0",
        ),
        Gpu(GpuId(f"GPU-{server}-1"), 1, "NVIDIA H200", 140 * GIB),
        Gpu(GpuId(f"MIG-{server}-2"), 2, "NVIDIA H200 MIG 1g", 18 * GIB, parent=card),
        Gpu(GpuId("EMU-0"), 3, "NVIDIA Emulated", 8 * GIB, emulated=True),
    )  # fmt: skip


def request(number: int, count: int = 1, **more: object) -> Request:
    base: dict[str, object] = {"fraction": 0.5, "client": "ada@laptop", "program": "train.py"}
    return Request(RequestId(bytes([number]) * 16), count, **(base | more))  # type: ignore[arg-type]


def grant(asked: Request, user: str, *partitions: Partition) -> commands.Grant:
    incarnations = {part.server: ONE for part in partitions}
    digest = bytes([asked.id[0]]) * 32
    return commands.Grant(asked, user, TokenId(user * 4), digest, partitions, incarnations)


def part(server: ServerId, index: int, gib: int) -> Partition:
    return Partition(server, GpuId(f"GPU-{server[0]}-{index}"), gib * GIB)


def founding(name: str = "lab", encryption: str = "tls") -> list[Command]:
    """Return the commands that make a pool of three servers, one a witness, with three users."""
    found: list[Command] = [
        commands.CreatePool("c0ffee", name, encryption),
        commands.JoinServer(A, "gpu-a", "10.0.0.1:7470", False, None),
    ]
    for server, label, witness in ((B, "gpu-b", False), (C, "wit", True)):
        token = TokenId(f"join-{label}")
        found.append(commands.CreateToken(token, TokenKind.SERVER, label, bytes(32), FAR, "root"))
        found.append(commands.JoinServer(server, label, f"{label}:7470", witness, token))
    kinds = {"ada": TokenKind.USER, "bob": TokenKind.USER, "root": TokenKind.OPERATOR}
    for number, (user, kind) in enumerate(kinds.items()):
        digest = bytes([number]) * 32
        token = TokenId(user * 4)
        found.append(commands.CreateToken(token, kind, user, digest, FAR, "root"))
    labels = {"rack": "1", "room": "b2"}
    versions = ("0.1.0", "580.1", "13.0")
    for server in (A, B):
        gpus = gpus_of(server[0])
        up = commands.ServerUp(server, ONE, f"{server[0]}:1", *versions, gpus, labels, 25_000, True)
        found.append(up)
    found.append(commands.ServerUp(C, ONE, "c:7470", "0.1.0", "", "", ()))
    return found


def work() -> list[Command]:
    """Return later actions of people and servers; the leases are 16, 17, 18 and 20."""
    near = (Filter("gpu.memory", Operator.AT_LEAST, (str(40 * GIB),)),)
    patient = request(
        7, 4, placement=Placement.NEAR, filters=near, servers=("gpu-a", "gpu-b"), across=True,
        idle_timeout_s=90.5,
    )  # fmt: skip
    wide = request(3, 2, across=True, idle_timeout_s=60.0, servers=("gpu-a", B))
    return [
        commands.Tick(),
        *document(policy_draft(), 0),
        grant(request(1, filters=near), "ada", part(A, 0, 70)),
        grant(request(2, memory=8 * GIB, fraction=0.0), "bob", part(A, 1, 8)),
        grant(wide, "ada", part(A, 1, 70), part(B, 0, 70)),
        grant(request(1), "ada", part(A, 0, 70)),
        grant(request(4), "ada", part(B, 1, 70)),
        grant(request(5), "bob", part(B, 1, 100)),
        grant(request(6, 2), "ada", part(B, 1, 1)),
        commands.Wait(patient, "bob", TokenId("bob" * 4), "4 of 8 idle"),
        commands.Wait(request(8, memory=GIB, fraction=0.0), "ada", TokenId("ada" * 4), "busy"),
        commands.CancelRequest(request(8).id, "gone on", "ada", RequestId(bytes([9]) * 16)),
        commands.CancelRequest(request(10).id, "never mind", "ada"),
        commands.CancelRequest(request(7).id, "not mine", "ada"),
        commands.NoteIdle(LeaseId(18), A, ONE, True),
        commands.EndLease(LeaseId(16), "released", "ada"),
        commands.FreeLease(LeaseId(16), A, ONE),
        commands.GiveNotice(LeaseId(20)),
        commands.EndLease(LeaseId(17), "by order", "root", True),
        commands.EndLease(LeaseId(18), "not mine", "bob"),
        commands.ReportGpus(
            A, ONE, {GpuId("GPU-a-1"): commands.GpuReading(3 * GIB, "Xid 79")}
        ),
        commands.DrainServer(B, "new fan", "root", bytes(16)),
        commands.DrainServer(B, "new fan", "root", bytes(16)),
        commands.LabelServer(A, {"rack": "2"}, ("room",), "root", b"\x01" * 16),
        commands.ServerContact(B, ONE, False),
        commands.GiveNotice(LeaseId(18)),
        commands.RevokeToken(TokenId("bob" * 4), "root"),
        commands.StagePart(b"\x02" * 16, 0, b"half of something"),
    ]  # fmt: skip


def later() -> list[Command]:
    """Return how it goes on after the table was recorded."""
    return [
        commands.EndLease(LeaseId(18), "released", "ada"),
        commands.FreeLease(LeaseId(18), A, ONE),
        commands.ServerContact(B, ONE, True),
        commands.DrainServer(B, None, "root", b"\x03" * 16),
        commands.ServerUp(A, Incarnation(2), "a:7471", "0.1.1", "580.2", "13.0", gpus_of("a")),
        commands.RemoveServer(B, "root"),
        commands.RemoveServer(B, "root"),
    ]


def clock_set() -> list[Command]:
    """Return how an operator sets the time back."""
    back = commands.SetClock(Milliseconds(START_MS + 1000), 0, "root")
    return [back, back, commands.Tick()]


def ca_exchanged() -> list[Command]:
    """Return how the pool gets another CA, in the era that the clock's setting began."""
    old, new = b"the first CA", b"the second CA"
    retired = sha256(old).digest()
    return [
        commands.RotateCa(old, new, "root"),
        commands.RotateCa(old, new, "root"),
        commands.RetireCa(retired, False, "root"),
        commands.ReportIssuer(A, Incarnation(2), sha256(new).digest()),
        commands.RetireCa(retired, True, "root"),
        commands.RetireCa(retired, False, "root"),
    ]


def gpus_drained() -> list[Command]:
    """Return orders about single GPUs, and a server's automatic drains."""
    one, other = (gpu.id for gpu in gpus_of("a")[:2])
    since = Milliseconds(START_MS)

    def hot(gpu: GpuId, onset: Milliseconds) -> Command:
        return commands.DrainGpu(A, gpu, "auto: thermal: hot", "a", sign="thermal", onset=onset)

    return [
        commands.DrainGpu(A, one, "new fan", "root", b"\x05" * 16),
        commands.DrainGpu(A, one, None, "root", b"\x06" * 16),
        commands.DrainGpu(A, one, "new fan", "root", b"\x05" * 16),
        hot(one, since),
        hot(one, FAR),
        hot(other, since),
    ]


def silences() -> list[Command]:
    """Return silences that are set, repeated, lifted and refused."""
    until = Milliseconds(START_MS + 86_400_000)
    one = commands.SetSilence("disk", "gpu-1", "free", "new disk", until, "root", b"\x07" * 16)
    wide = commands.SetSilence("clock", "", "", "NTP is away", until, "root", b"\x08" * 16)
    lift = commands.SetSilence("disk", "gpu-1", "free", None, Milliseconds(0), "root", b"\x09" * 16)
    return [one, wide, one, lift, lift, one, commands.NoteBackup("root")]


def tokens_for_several() -> list[Command]:
    """Return how a token lets two servers in, a third is refused, and a token is renewed."""
    token = TokenId("several")
    made = commands.CreateToken(token, TokenKind.SERVER, "root", bytes(32), FAR, "root", 2)
    servers = [ServerId(f"{letter}" * 12) for letter in "def"]
    joins = [commands.JoinServer(s, f"gpu-{s[0]}", f"{s[0]}:1", False, token) for s in servers]
    later = Milliseconds(FAR + 1)
    return [made, *joins, joins[0], commands.RenewToken(token, later, "root")]


class Script:
    """A table, and the answers of its commands."""

    def __init__(self, name: str, empty: PoolState = EMPTY) -> None:
        self.name = name
        self.machine = PoolMachine(empty)
        self.found: dict[str, bytes] = {}

    @property
    def state(self) -> PoolState:
        return self.machine.state

    def run(self, steps: list[Command]) -> None:
        for command in steps:
            index = self.state.index + 1
            plain = wrap(command, at_ms=START_MS + 100 * index, ttl_ms=60_000, era=self.state.era)
            result = self.machine.apply(index, plain)
            kind = commands.NAMES[type(command)]
            self.found[f"{self.name} {index} {kind}"] = closed_cbor.encode(result)

    def keep(self, label: str) -> None:
        self.found[f"table {label}"] = closed_cbor.encode(self.machine.snapshot())


def scripts() -> list[Script]:
    """Return the pool, and another one into which its backup was restored."""
    pool = Script("pool")
    pool.keep("empty")
    pool.run(founding())
    pool.run(work())
    pool.keep("in use")
    file = to_file(make_backup(pool.state))
    pool.found["backup"] = file
    pool.run(later())
    pool.keep("later")
    pool.run(clock_set())
    pool.keep("clock set")
    short = Script("impatient", PoolState(starved_after_ms=1500))
    short.run(founding()[:2])
    short.keep("where a request goes first soon")
    pool.run(ca_exchanged()[:4])
    pool.keep("of two CAs")
    pool.run(ca_exchanged()[4:])
    pool.keep("of the second CA")
    pool.run(gpus_drained())
    pool.keep("with a drained GPU")
    up = commands.ServerUp(
        A, Incarnation(3), "a:7471", "0.1.2", "580.2", "13.0", gpus_of("a"), alerts=True
    )
    pool.run([up])
    pool.keep("of a server with alerts")
    pool.run(tokens_for_several())
    pool.keep("of a token for several")
    pool.run([dataclasses.replace(up, formats=6)])
    pool.keep("of a server that says its formats")
    pool.run(silences())
    pool.keep("with silences")
    heir = Script("heir")
    heir.run(founding("new", "off")[:2])
    packed = compressed("packed backup", lambda: b"".join(backup.pack(file)))
    heir.found["packed backup"] = packed
    heir.run(restoring(parts_of(packed), "root"))
    heir.run(restoring(parts_of(packed), "root"))
    heir.keep("restored")
    others = [accounts(), suspensions(), preemption(), shares(), weights(), moves(), batch()]
    others += [relocations(), time_set(), keys(), late_move(), names()]
    return [pool, short, heir, *others]


def accounts() -> Script:
    """Return a pool that records its leases: one waited for, of a class and a department."""
    script = Script("accounts")
    script.run(founding())
    gpus = gpus_of("a")
    up = commands.ServerUp(A, Incarnation(1), "a:1", "0.1.0", "580.1", "13.0", gpus, accounts=True)
    script.run([up])
    script.run(document(compressed("packed department", _department), 0))
    waiting = request(1, idle_timeout_s=60.5)
    script.run([commands.Wait(waiting, "ada", TokenId("ada" * 4), "busy"), commands.Tick()])
    script.run([grant(waiting, "ada", part(A, 0, 70)), grant(request(2), "bob", part(A, 1, 70))])
    first, second = script.state.leases
    script.run([commands.EndLease(first, "released", "ada"), commands.FreeLease(first, A, ONE)])
    assert list(script.state.leases) == [second]
    later = request(3)
    script.run([commands.Wait(later, "ada", TokenId("ada" * 4), "busy"), commands.Tick()])
    script.run([grant(later, "ada", part(B, 0, 70))])
    script.keep("with records")
    script.run([commands.EndLease(second, "done", "bob"), commands.FreeLease(second, A, ONE)])
    salt = bytes(range(16))
    script.run(
        [commands.ForgetUser(salt, digest_of(salt, name), "root") for name in ("ada", "bob")]
    )
    script.run([commands.ForgetUser(salt, digest_of(salt, "bob"), "root")])
    script.keep("with a forgotten user")
    return script


def suspensions() -> Script:
    """Return a pool with leases that are suspended, refused, and resumed."""
    script = Script("suspensions")
    script.run(founding())
    up = commands.ServerUp(
        A, ONE, "a:1", "0.1.0", "580.1", "13.0", gpus_of("a"), accounts=True, formats=7
    )
    script.run([up])
    wide = request(1, 2, across=True)
    script.run([grant(wide, "ada", part(A, 0, 70), part(B, 0, 70))])
    script.run([grant(request(2), "bob", part(A, 1, 70))])
    first, second = script.state.leases
    script.run([commands.SuspendLease(first, "for the course", "root", True, None, bytes(16))])
    number = script.state.index
    script.run(
        [
            commands.SuspendLease(first, "again", "ada"),
            commands.SuspendLease(first, "not mine", "bob"),
            commands.ConfirmSuspended(first, A, ONE, number, GIB),
            commands.ConfirmSuspended(first, B, ONE, number - 1, GIB),
        ]
    )
    script.keep("with a lease that is being suspended")
    script.run([commands.ConfirmSuspended(first, B, ONE, number, 2 * GIB)])
    script.keep("with a suspended lease")
    taken = grant(request(3), "bob", part(B, 0, 100))
    waits = commands.Wait(request(4), "ada", TokenId("ada" * 4), "busy")
    script.run([taken, waits, commands.ResumeLease(first, "ada")])
    script.run([commands.ResumeLease(first, "root", True, b"\x01" * 16)])
    script.keep("with a lease that waits to be resumed")
    last = [lease for lease in script.state.leases if lease not in (first, second)]
    script.run([commands.EndLease(last[0], "done", "bob"), commands.FreeLease(last[0], B, ONE)])
    script.run([commands.ResumeLease(first)])
    script.run([commands.ConfirmResumed(first, server, ONE, number) for server in (B, A)])
    script.run([commands.SuspendLease(second, "to go first", for_request=request(4).id)])
    refusal = commands.RefuseSuspension(second, A, ONE, script.state.index, "MIG mode")
    script.run([refusal, refusal])
    script.keep("with a lease that was not suspended")
    script.run([commands.EndLease(first, "done", "ada"), commands.FreeLease(first, A, ONE)])
    script.keep("with a record of a lease that was suspended")
    return script


GIVING_WAY = """\
[class.lab]
users = ["ada"]
preemptible = true
max_suspended = "4h"
min_run_time = "1m"
guarantee = 0.25
[class.staff]
users = ["bob"]
priority = 3
[[window]]
from = "20:00"
to = "21:00"
leases = "suspend"
[window.class.lab]
max_gpus = 1
"""


def preemption() -> Script:
    """Return a pool in which a lease is suspended for a request of higher priority."""
    script = Script("preemption")
    script.run(founding())
    script.run(document(compressed("packed preemption", _giving_way), 0))
    script.run([grant(request(1, preemptible=True), "ada", part(A, 0, 70))])
    [lease] = script.state.leases
    wide = request(2, fraction=1.0, servers=("gpu-a",), preemptible=True)
    waits = commands.Wait(wide, "bob", TokenId("bob" * 4), "busy")
    script.run([waits, commands.SuspendLease(lease, "")])
    script.run([commands.SuspendLease(lease, "bob goes first", for_request=request(2).id)])
    script.keep("with a lease that gives way")
    return script


def _giving_way() -> bytes:
    made = policy_versions.Draft(
        policy_versions.pack_text(GIVING_WAY), parse_policy(GIVING_WAY, zone)
    )
    return policy_versions.pack_draft(made)


WEIGHTS = """\
[class.lab]
users = ["ada"]
weight = 2.5
[[window]]
from = "20:00"
to = "21:00"
[window.class.lab]
weight = 0.5
"""


def _weights() -> bytes:
    made = policy_versions.Draft(policy_versions.pack_text(WEIGHTS), parse_policy(WEIGHTS, zone))
    return policy_versions.pack_draft(made)


def weights() -> Script:
    """Return a pool with a policy that gives one class more weight."""
    script = Script("weights")
    script.run(founding())
    script.run(document(compressed("packed weights", _weights), 0))
    script.keep("with weights")
    return script


def moves() -> Script:
    """Return a pool in which a lease is moved to another GPU, and one could not be."""
    script = Script("moves")
    script.run(founding())
    gpus = tuple(
        Gpu(GpuId(f"EMU-{n}"), n, "Emulated GPU", 8 * GIB, emulated=True) for n in range(2)
    )
    script.run([commands.ServerUp(A, ONE, "a:1", "0.1.0", "580.1", "13.0", gpus)])
    script.run([grant(request(1), "ada", Partition(A, gpus[0].id, GIB))])
    [lease] = script.state.leases
    script.run([commands.MoveLease(lease, A, "ada", order=bytes(16))])
    number = script.state.index
    script.keep("with a lease that is about to be moved")
    script.run([commands.ConfirmSuspended(lease, A, ONE, number, 0)])
    script.keep("with a lease that goes on elsewhere")
    script.run([commands.ConfirmResumed(lease, A, ONE, number)])
    back = commands.MoveLease(lease, A, "root", True, (gpus[1].id,), (gpus[0].id,))
    script.run([back, commands.MoveLease(lease, B, "bob")])
    script.keep("with a lease that was moved")
    return script


def relocations() -> Script:
    """Return a pool in which a lease goes to another server, and one stays."""
    script = Script("relocations")
    script.run(founding())
    for server in (A, B):
        gpu = Gpu(GpuId(f"EMU-{server[0]}"), 0, "Emulated GPU", 8 * GIB, emulated=True)
        address = f"{server[0]}:1"
        up = commands.ServerUp(server, ONE, address, "0.1.0", "580.1", "13.0", (gpu,), formats=9)
        script.run([dataclasses.replace(up, accounts=True)])
    script.run([grant(request(1), "ada", Partition(A, GpuId("EMU-a"), GIB))])
    [lease] = script.state.leases
    script.run([commands.RelocateLease(lease, B, "ada", order=bytes(16))])
    number = script.state.index
    script.keep("with a lease that is leaving its server")
    script.run([commands.ConfirmRelocated(lease, A, ONE, number)])
    script.keep("with a lease that has gone to another server")
    script.run([commands.FreeLease(lease, A, ONE, number)])
    script.run([commands.RelocateLease(lease, A, "root", True)])
    number = script.state.index
    script.run([commands.RefuseRelocation(lease, number, "it will not", B, ONE)])
    script.keep("with a lease that stays on its server")
    return script


def late_move() -> Script:
    """Return a pool in which a lease should go to another server, and does not within a minute."""
    script = Script("late move")
    script.run(founding())
    for server in (A, B, C):
        gpu = Gpu(GpuId(f"EMU-{server[0]}"), 0, "Emulated GPU", 8 * GIB, emulated=True)
        address = f"{server[0]}:1"
        up = commands.ServerUp(server, ONE, address, "0.1.0", "580.1", "13.0", (gpu,), formats=12)
        script.run([dataclasses.replace(up, accounts=True)])
    script.run([grant(request(1), "ada", Partition(A, GpuId("EMU-a"), GIB))])
    assert script.state.formats() == 12
    [lease] = script.state.leases
    script.run([commands.RelocateLease(lease, B, "ada", order=bytes(16))])
    number = script.state.index
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "BEGIN_MS", 100)
        script.run([commands.RefuseRelocation(lease, number, "it has not begun to go", B, ONE)])
    script.keep("with a lease whose move was given up late")
    script.run([commands.FreeLease(lease, B, ONE, number)])
    script.run([commands.RelocateLease(lease, B, "ada", order=bytes([1]) * 16)])
    script.keep("with a lease that may not move for a while")
    return script


def batch() -> Script:
    """Return a pool in which each command ends one of two leases."""
    script = Script("batch")
    script.run(founding())
    ups = [
        commands.ServerUp(each, ONE, f"{each[0]}:1", "1", "2", "3", gpus_of(each[0]), formats=8)
        for each in (A, B, C)
    ]
    script.run([*ups])
    script.run([grant(request(1), "ada", part(A, 0, 70)), grant(request(2), "ada", part(A, 1, 70))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "ENDED_AT_ONCE_MAX", 1)
        script.run([commands.RevokeToken(TokenId("ada" * 4), "root")])
        script.keep("with a token whose leases are being ended")
        script.run([dataclasses.replace(ups[0], incarnation=Incarnation(2))])
        script.keep("with a server whose former leases are being ended")
    return script


def time_set() -> Script:
    """Return a pool with its time set back; each command moves one of four leases."""
    script = Script("time")
    script.run(founding())
    ups = [
        commands.ServerUp(each, ONE, f"{each[0]}:1", "1", "2", "3", gpus_of(each[0]), formats=8)
        for each in (A, B, C)
    ]
    script.run([*ups])
    script.run([grant(request(each), "ada", part(A, 0, 10)) for each in range(1, 5)])
    *_, last = script.state.leases
    order = commands.SetClock(Milliseconds(START_MS + 1000), 0, "root")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_setting, "MOVED_AT_ONCE_MAX", 1)
        script.run([order, commands.EndLease(last, "released", "ada")])
        script.keep("whose time was set, with leases that are not moved")
        script.run([order] * 3)
        script.keep("whose time was set, with leases that are moved")
    return script


def keys() -> Script:
    """Return a pool in which one of two servers has the CA's keys, and cannot leave."""
    script = Script("keys")
    script.run(founding())
    for server in (A, B):
        up = commands.ServerUp(server, ONE, f"{server[0]}:1", "1", "2", "3", (), formats=10)
        script.run([dataclasses.replace(up, has_keys=True)])
    script.run([commands.RotateCa(b"the first CA", b"the second CA", "root", (A,))])
    script.keep("with a server that has the keys of both CAs")
    script.run([commands.RemoveServer(A, "root"), commands.RemoveServer(B, "root")])
    return script


def names() -> Script:
    """Return a pool with a server that has a DNS name beside its address."""
    script = Script("names")
    script.run(founding())
    up = commands.ServerUp(A, ONE, "10.0.0.4:1", "1", "2", "3", (), formats=12)
    script.run([dataclasses.replace(up, names=("a.lab.example:1",))])
    script.keep("with a server that has a name")
    return script


def shares() -> Script:
    """Return a pool with a lease that asked for a share of a GPU's time."""
    script = Script("shares")
    script.run(founding())
    script.run([commands.ServerUp(A, ONE, "a:1", "0.1.0", "580.1", "13.0", gpus_of("a"))])
    asked = request(1, share=0.25)
    script.run([grant(asked, "ada", part(A, 0, 70))])
    script.run([commands.Wait(request(2, share=0.5), "bob", TokenId("bob" * 4), "busy")])
    script.keep("with shares of time")
    return script


def _department() -> bytes:
    text = "[class.lab]\nusers = ['ada']\n[user.ada]\ndepartment = 'physics'\n"
    made = policy_versions.Draft(policy_versions.pack_text(text), parse_policy(text, zone))
    return policy_versions.pack_draft(made)


def everything() -> dict[str, bytes]:
    """Return all that is recorded of commands and tables."""
    found = command_bytes()
    found["packed policy text"] = policy_text()
    found["packed policy draft"] = policy_draft()
    found["table of samples"] = closed_cbor.encode(encode(full(PoolState, "table")))
    found["table of samples in an era"] = closed_cbor.encode(encode(in_an_era()))
    envelope = wrap(commands.Tick(), at_ms=START_MS, ttl_ms=1000, era=3)
    found["tick in an era"] = closed_cbor.encode(envelope)
    found["packed department"] = compressed("packed department", _department)
    found["packed preemption"] = compressed("packed preemption", _giving_way)
    found["packed weights"] = compressed("packed weights", _weights)
    up = commands.ServerUp(A, ONE, "a:1", "0.1.0", "580.1", "13.0", (), accounts=True)
    found["server-up with accounts"] = closed_cbor.encode(wrap(up, at_ms=START_MS, ttl_ms=1000))
    up = dataclasses.replace(up, formats=10, has_keys=True)
    found["server-up with keys"] = closed_cbor.encode(wrap(up, at_ms=START_MS, ttl_ms=1000))
    up = dataclasses.replace(up, formats=12, names=("a.lab.example:7470",))
    found["server-up with names"] = closed_cbor.encode(wrap(up, at_ms=START_MS, ttl_ms=1000))
    end = commands.EndLease(LeaseId(9), "it was suspended for 4h, the longest time", away=True)
    found["end-lease while away"] = closed_cbor.encode(wrap(end, at_ms=START_MS, ttl_ms=1000))
    rotate = commands.RotateCa(b"the first CA", b"the second CA", "root", (A, B))
    found["rotate-ca with keepers"] = closed_cbor.encode(wrap(rotate, at_ms=START_MS, ttl_ms=1000))
    for name, result in results().items():
        found[name] = closed_cbor.encode(encode(result))
    for script in scripts():
        found |= script.found
    return found


def in_an_era() -> PoolState:
    """Return a table with its time set."""
    return dataclasses.replace(full(PoolState, "table"), era=3)


def results() -> dict[str, Result]:
    return {"result full": full(Result, "result"), "result bare": bare(Result)}


def _text(text: str) -> bytes:
    return text.encode() + b"\n"
