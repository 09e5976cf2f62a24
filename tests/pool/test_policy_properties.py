"""Random leases under random policies: limits hold at every grant, and nobody starves."""

import random
import tomllib
from fractions import Fraction
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.policy_kit import GIB, MONDAY_MS, USERS, Pool, policy_commands
from tests.properties import examples

from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Plain, TokenId
from gpupool.pool.model.policy import MILLI, UNIT
from gpupool.pool.model.state import STARVED_AFTER_MS, PoolState, Request
from gpupool.pool.scheduling.offers import Offer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.ranking import rank
from gpupool.pool.transitions.apply import PoolMachine

HOUR_MS = 3_600_000
CAPACITY = 80 * GIB + 777  # which neither fractions nor MiB divide


# --- a second opinion: what a policy means, as simply as it can be said ---------------------------


def limit_of(document: dict[str, Any], now: int, user: str, key: str, scope: str) -> Any:
    """Return a limit of a user ("user"), of their class ("class") or of all users ("pool")."""
    places = [document]
    hour = now // HOUR_MS % 24
    for window in document.get("window", []):
        start, end = int(window["from"][:2]), int(window["to"][:2])
        if start <= hour < end if start < end else (hour >= start or hour < end):
            places.insert(0, window)
    group = class_of(document, user)
    wanted = [("user", user, key), ("class", group, f"{key}_per_user"), ("defaults", "", key)]
    if scope != "user":
        wanted = [(scope, group if scope == "class" else "", key)]
    for target, name, each in wanted:
        for place in places:
            table = place.get(target, {})
            table = table.get(name, {}) if name or target in ("class", "user") else table
            if each in table:
                return None if table[each] == "none" else table[each]
    return None


def class_of(document: dict[str, Any], user: str) -> str:
    for name, table in document.get("class", {}).items():
        if user in table.get("users", []):
            return str(name)
    return ""


def held(state: PoolState, users: set[str], key: str) -> Fraction:
    total = Fraction(0)
    for lease in state.leases.values():
        if lease.user in users:
            if key == "max_leases":
                total += 1
            for part in lease.partitions:
                if key == "max_gpus":
                    total += Fraction(part.memory, CAPACITY)
                elif key == "max_memory":
                    total += part.memory
    return total


def check_limits(state: PoolState, document: dict[str, Any], user: str) -> None:
    """Check every limit that a grant to ``user`` just now had to respect."""
    group = class_of(document, user)
    members = {each for each in USERS if class_of(document, each) == group}
    for key in ("max_gpus", "max_memory", "max_leases"):
        for scope, users in (("user", {user}), ("class", members), ("pool", set(USERS))):
            limit = limit_of(document, state.now, user, key, scope)
            if limit is None or (scope == "class" and not group):
                continue
            most = Fraction(str(limit).rstrip("G")) * (GIB if key == "max_memory" else 1)
            # Units round down, by less than a byte of each partition.
            assert held(state, users, key) <= most + Fraction(256, UNIT), (key, scope, user)


# --- random policies ------------------------------------------------------------------------------

LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_gpus": st.integers(0, 5000).map(lambda n: f"{n / 1000}"),
        "max_memory": st.integers(1, 400).map(lambda n: f'"{n}G"'),
        "max_leases": st.integers(0, 4).map(str),
    },
)


def table(name: str, limits: dict[str, str], suffix: str = "") -> str:
    return f"[{name}]\n" + "".join(f"{k}{suffix} = {v}\n" for k, v in limits.items())


@st.composite
def policies(draw: st.DrawFn) -> str:
    text = '[class.x]\nusers = ["ada", "bob"]\n'
    text += "".join(f"{k} = {v}\n" for k, v in draw(LIMITS).items())
    text += "".join(f"{k}_per_user = {v}\n" for k, v in draw(LIMITS).items())
    text += '[class.y]\nusers = ["cy"]\npriority = 3\n'
    for name in ("defaults", "pool", "user.ada", "user.dee"):
        if draw(st.booleans()):
            text += table(name, draw(LIMITS))
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, 23))
        end = (start + draw(st.integers(1, 20))) % 24
        rules = draw(LIMITS)
        if rules:
            text += f'[[window]]\nfrom = "{start:02d}:00"\nto = "{end:02d}:00"\n'
            if draw(st.booleans()):
                text += 'leases = "end"\ngrace = "10m"\n'
            text += table(draw(st.sampled_from(["window.class.x", "window.pool"])), rules)
    return text


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["grant"] * 6 + ["end", "free", "free", "policy", "duties", "wait"]),
        st.sampled_from(USERS),
        st.integers(0, 10**6),
        st.sampled_from([0, 1000, 60_000, HOUR_MS, 5 * HOUR_MS]),
    ),
    min_size=10,
    max_size=40,
)


@pytest.mark.long
@given(st.lists(policies(), min_size=1, max_size=3), ACTIONS)
@settings(max_examples=examples(60), deadline=None)
def test_limits_hold_at_every_step_and_replays_agree(
    texts: list[str], actions: list[tuple[str, str, int, int]]
) -> None:
    pool = Pool(capacity=CAPACITY)
    log: list[Plain] = []
    first = pool.machine.snapshot()

    def do(command: c.Command) -> bool:
        log.append(cbor2.loads(cbor2.dumps(wrap(command, at_ms=pool.now_ms, ttl_ms=0))))
        return pool.do(command).ok  # which checks the books as well

    document: dict[str, Any] = {}
    for kind, user, number, elapsed_ms in [("policy", "", 0, 0), *actions]:
        pool.now_ms += elapsed_ms
        leases = list(pool.state.leases.values())
        if kind == "policy":
            text = texts[number % len(texts)]
            for command in policy_commands(text, pool.state.policy.version):
                assert do(command)
            document = tomllib.loads(text)
        elif kind == "grant":
            count, fraction = 1 + number % 3, (0.05, 0.3, 0.5, 0.75, 1.0)[number % 5]
            # Claimed by somebody who does not ask first: ``apply`` alone must refuse.
            servers = pool.state.servers.values()
            request = pool.request(count, fraction)
            empty = [make_offer(PoolState(servers=pool.state.servers), s, request) for s in servers]
            choices = rank([o for o in empty if isinstance(o, Offer)], request)
            if choices:
                choice = choices[number % len(choices)]
                ticket, incarnations = bytes(32), choice.incarnations
                partitions, token = choice.partitions, TokenId(user)
                if do(c.Grant(request, user, token, ticket, partitions, incarnations)):
                    check_limits(pool.state, document, user)
        elif kind == "wait":
            do(c.Wait(pool.request(1 + number % 4), user, TokenId(user), "busy"))
        elif kind == "duties":
            from gpupool.pool.policy.lease_ends import due

            for command in due(pool.state, pool.now_ms):
                do(command)
        elif leases:
            lease = leases[number % len(leases)]
            if kind == "end":
                do(c.EndLease(lease.id, "over"))
            for server in lease.parts if kind == "free" else ():
                do(c.FreeLease(lease.id, server, pool.state.servers[server].incarnation))
    replica = PoolMachine(PoolState())
    replica.restore(first)
    for position, plain in enumerate(log):
        if position == len(log) // 2:
            snapshot: Plain = cbor2.loads(cbor2.dumps(replica.snapshot()))
            replica = PoolMachine(PoolState())
            replica.restore(snapshot)
        replica.apply(replica.state.index + 1, plain)
    assert replica.state == pool.state


# --- nobody starves -------------------------------------------------------------------------------


def crowd(seed: int, *, policy: str = "", user: str = "boss", count: int = 4) -> int:
    """Let one large request wait in a crowd of small ones; return after how many ms it is granted.

    Small requests come faster than leases end, and are always asked for first.
    """
    draw = random.Random(seed)
    pool = Pool(policy)
    ends: dict[int, list[Any]] = {}
    large: Request | None = None
    begin = 0
    for step in range(400):  # seconds
        pool.now_ms = MONDAY_MS + step * 1000
        for lease in ends.pop(step, []):
            pool.end(lease)
        for _ in range(6):
            request = pool.request(1, draw.choice([0.25, 0.5, 1.0]))
            small = draw.choice(["ada", "bob", "cy"])
            offers = [o for o in pool.ask(small, request) if isinstance(o, Offer)]
            if offers:
                result = pool.do(pool.claim(small, request))
                assert result.ok, result
                ends.setdefault(step + draw.randint(5, 25), []).append(result.lease)
        if step == 30:
            large, begin = pool.request(count), pool.now_ms
        if large is not None:
            if any(isinstance(answer, Offer) for answer in pool.ask(user, large)):
                assert pool.do(pool.claim(user, large)).ok
                return pool.now_ms - begin
            if step % 5 == 0:
                pool.do(c.Wait(large, user, TokenId(user), "busy"))
    return -1


@pytest.mark.parametrize("seed", range(4))
def test_a_large_request_is_not_overtaken_for_ever(seed: int) -> None:
    waited_ms = crowd(seed)
    # After a minute its GPUs are kept for it, and the longest lease on them lasts 25 s.
    assert 0 <= waited_ms <= STARVED_AFTER_MS + 26_000


def test_nor_where_the_policy_lets_it_go() -> None:
    waited_ms = crowd(1, policy='[user.boss]\ngpus = ["*H200*"]\n')
    assert 0 <= waited_ms <= STARVED_AFTER_MS + 26_000


def test_without_fair_waiting_it_would_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_kept(*_: object) -> None:
        return None

    monkeypatch.setattr("gpupool.pool.scheduling.fairness.reserved_for_others", nothing_kept)
    assert crowd(0) == -1


def test_units_of_a_gpu_are_as_fine_as_the_limits() -> None:
    assert UNIT == 1000 * MILLI
