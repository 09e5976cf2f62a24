"""Backups: the whole table comes back, into a fresh pool only, whole or not at all."""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.pool_strategies import SERVERS, steps
from tests.pool.test_apply_properties import founded
from tests.pool.test_audit import do, grant
from tests.properties import examples

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Milliseconds, ServerId, TokenId
from gpupool.pool.model.policy import Policy, PolicyVersion, Rule
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import (
    ACT_COUNT_MAX,
    SERVER_COUNT_MAX,
    Act,
    PoolState,
    Token,
    TokenKind,
)
from gpupool.pool.scheduling.filters import LABEL_COUNT_MAX
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.backup import (
    BYTES,
    Backup,
    BackupError,
    all_acts,
    from_file,
    from_json,
    make_backup,
    pack,
    read_json,
    restore_refusal,
    to_file,
    unpack,
)
from gpupool.pool.transitions.policy_versions import Draft, digest_of, pack_draft, pack_text
from gpupool.pool.transitions.shallow_json import load_shallow
from gpupool.pool.transitions.uploads import parts_of

FAR = Milliseconds(10**12)
UPLOAD = bytes(16)


def fresh() -> PoolMachine:
    """Return a pool as ``gpupool join`` founds it."""
    machine = PoolMachine(PoolState())
    do(machine, c.CreatePool("new-cluster", "new", "tls"))
    do(machine, c.JoinServer(ServerId("f" * 12), "a", "a:1", False, None))
    do(machine, c.CreateToken(TokenId("fresh"), TokenKind.OPERATOR, "eve", bytes(32), FAR, "eve"))
    return machine


def with_policy(machine: PoolMachine) -> PoolMachine:
    text = pack_text("[defaults]\nmax_gpus = 2\n")
    draft = pack_draft(Draft(text, Policy(rules=(Rule("defaults", "", "max_gpus", 2, 2000),))))
    parts = parts_of(draft)
    for number, part in enumerate(parts):
        do(machine, c.StagePart(UPLOAD, number, part))
    base = machine.state.policy.version
    assert do(machine, c.ApplyPolicy(UPLOAD, len(parts), digest_of(draft), base, "root")).ok
    return machine


def restore(machine: PoolMachine, file: bytes, *, lose: int = -1) -> Result:
    parts = pack(file)
    for number, part in enumerate(parts):
        if number != lose:
            assert do(machine, c.StagePart(UPLOAD, number, part)).ok
    digest = sha256(b"".join(parts)).digest()
    return do(machine, c.RestoreBackup(UPLOAD, len(parts), digest, "eve"))


@pytest.mark.parametrize("beyond", [0, 1])
def test_labels_of_a_backup_that_would_be_too_many_for_a_server_are_left_out(beyond: int) -> None:
    source, target = founded(), fresh()
    own = {"own": "1"}
    kept = {f"label-{number}": "1" for number in range(LABEL_COUNT_MAX - 1 + beyond)}
    [server] = target.state.servers.values()
    do(target, c.LabelServer(server.id, own, (), "root"))
    backup = replace(make_backup(source.state), labels={server.name: kept})
    assert restore(target, to_file(backup)).ok
    assert target.state.servers[server.id].labels == (own if beyond else own | kept)
    assert violations(target.state) == []


def test_what_comes_back_and_what_does_not() -> None:
    source = with_policy(founded())
    do(source, c.LabelServer(SERVERS[0], {"rack": "4"}, (), "root"))
    do(source, c.LabelServer(SERVERS[1], {"rack": "5"}, (), "root"))
    do(source, c.RevokeToken(TokenId("bob" * 4), "root"))
    grant(source, 1)
    target = fresh()
    own = target.state.tokens
    assert restore(target, to_file(make_backup(source.state))).ok
    state = target.state
    assert state.policy == source.state.policy
    assert state.policies == source.state.policies
    users = {k: t for k, t in source.state.tokens.items() if t.kind is not TokenKind.SERVER}
    assert state.tokens == users | own
    assert state.tokens[TokenId("bob" * 4)].revoked_at
    assert not state.leases
    assert list(state.servers) == [ServerId("f" * 12)]
    assert state.servers[ServerId("f" * 12)].labels == {"rack": "4"}  # it has the name of the old a
    assert state.cluster_id == "new-cluster"
    assert all_acts(state) == (*source.state.acts, *state.acts)
    assert [act.kind for act in state.acts][-1] == "restored"
    assert violations(state) == []
    # A server that joins later under the name of a former one gets its labels.
    token = TokenId("server")
    do(target, c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), FAR, "eve"))
    do(target, c.JoinServer(ServerId("e" * 12), "b", "b:1", False, token))
    assert target.state.servers[ServerId("e" * 12)].labels == {"rack": "5"}
    assert target.state.labels_awaited == {}
    # And a backup of the restored pool has the former history too.
    again = make_backup(target.state)
    assert again.acts == all_acts(target.state)
    assert again.policies == source.state.policies


def test_it_is_restored_once_and_a_repeated_command_does_no_harm() -> None:
    target = fresh()
    file = to_file(make_backup(with_policy(founded()).state))
    assert restore(target, file).ok
    before = target.state
    assert restore(target, file).ok  # its answer was lost
    assert target.state.act_count == before.act_count
    assert target.state.tokens == before.tokens
    other = restore(target, to_file(make_backup(founded().state)))
    assert other.why == "a backup was restored into this pool already"


def test_no_pool_that_is_in_use_takes_a_backup() -> None:
    file = to_file(make_backup(founded().state))
    assert restore(with_policy(fresh()), file).why == "this pool has a policy of its own already"
    used = founded()
    grant(used, 1)
    assert "are never restored" in restore(used, file).why
    assert restore_refusal(fresh().state) == ""


def test_a_lost_or_damaged_part_changes_nothing() -> None:
    acts = tuple(
        Act(n, n, Milliseconds(n), "drained", "root", "a", sha256(n.to_bytes(2, "big")).hexdigest())
        for n in range(1, ACT_COUNT_MAX + 1)
    )
    backup = Backup("c", "lab", 1, Milliseconds(1), Policy(), (), (), {}, acts)
    file = to_file(backup)
    assert len(pack(file)) > 2
    target = fresh()
    before = target.state
    result = restore(target, file, lose=1)
    assert "parts are missing" in result.why
    assert target.state.tokens == before.tokens
    assert target.state.former is None
    digest = sha256(b"nonsense").digest()
    do(target, c.StagePart(UPLOAD, 0, b"nonsense"))
    assert do(target, c.RestoreBackup(UPLOAD, 1, digest, "eve")).kind == "invalid"
    assert target.state.former is None
    assert restore(target, file).ok


# --- the file -------------------------------------------------------------------------------------

texts = st.text(max_size=8)
moments = st.integers(0, 2**40).map(Milliseconds)
tokens = st.lists(
    st.builds(
        Token,
        id=texts.map(TokenId),
        kind=st.sampled_from([TokenKind.USER, TokenKind.OPERATOR]),
        user=st.text(min_size=1, max_size=8),
        secret_hash=st.binary(min_size=32, max_size=32),
        created_at=moments,
        expires_at=moments,
        created_by=texts,
        revoked_at=moments,
    ),
    max_size=4,
    unique_by=lambda token: token.id,
).map(tuple)
words = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
backups = st.builds(
    Backup,
    cluster_id=texts,
    pool=texts,
    index=st.integers(0, 2**40),
    made_at=moments,
    policy=st.just(Policy(version=3, digest=bytes(32))),
    policies=st.just((PolicyVersion(3, "root", Milliseconds(5), pack_text("# nothing\n")),)),
    tokens=tokens,
    labels=st.dictionaries(texts, st.dictionaries(words, words, max_size=3), max_size=3),
    acts=st.lists(
        st.builds(
            Act,
            number=st.integers(0, 2**40),
            index=st.integers(0, 2**40),
            at=moments,
            kind=texts,
            by=texts,
            subject=texts,
            text=texts,
        ),
        max_size=4,
    ).map(tuple),
)


@given(backups)
@settings(max_examples=examples(100), deadline=None)
def test_every_backup_survives_its_file_and_its_parts(backup: Backup) -> None:
    file = to_file(backup)
    assert from_file(file) == backup
    assert unpack(b"".join(pack(file))) == backup


@given(steps)
@settings(max_examples=examples(50), deadline=None)
def test_the_backup_of_any_table_can_be_restored(
    sequence: list[tuple[c.Command, int, int]],
) -> None:
    source = founded()
    for command, _, _ in sequence:
        source.apply(source.state.index + 1, wrap(command, at_ms=5000, ttl_ms=0))
    target = fresh()
    backup = make_backup(source.state)
    assert restore(target, to_file(backup)).ok
    assert violations(target.state) == []
    assert make_backup(target.state).tokens[: len(backup.tokens)] == backup.tokens
    assert target.state.former is not None
    assert target.state.former.acts == backup.acts


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_file_is_refused(data: st.DataObject) -> None:
    file = bytearray(to_file(make_backup(founded().state)))
    place = data.draw(st.integers(0, len(file) - 2))
    if data.draw(st.booleans()):
        del file[place:]
    else:
        file[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BackupError):
        from_file(bytes(file))


@given(st.binary(max_size=200) | st.binary(max_size=100).map(b"gpupool-backup 1 ".__add__))
@settings(max_examples=examples(200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BackupError):
        from_file(data)
    with pytest.raises(BackupError):
        unpack(data)


POLICY_VERSION = {"version": 1, "by": "root", "at": 1, "packed": {"$bytes": "00"}}


def own_fields() -> dict[str, Any]:
    """Return the JSON object of a backup."""
    fields: dict[str, Any] = json.loads(to_file(make_backup(founded().state)).partition(b"\n")[2])
    return fields


def forged(body: bytes) -> bytes:
    """Return a file with a right checksum of any body."""
    return f"gpupool-backup 1 {sha256(body).hexdigest()}\n".encode() + body


def token_of(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a token with some fields changed."""
    token: dict[str, Any] = own_fields()["tokens"][0]
    return token | changes


def labels_of(servers: int, count: int) -> list[Any]:
    """Return the JSON of so many labels of each of so many servers."""
    labels = [[f"label-{number}", "1"] for number in range(count)]
    return [[f"server-{number}", labels] for number in range(servers)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"extra": 1}, "has no field 'extra'"),
        ({"index": "1"}, "expected int"),
        ({"pool": "\ud800"}, "makes no sense"),
        ({"tokens": own_fields()["tokens"] * 2}, "its tokens"),
        ({"labels": [["a", [["no label", "x" * 99]]]]}, "cannot be a label"),
        ({"tokens": [token_of(user="")]}, "token "),
        ({"tokens": [token_of(secret_hash={"$bytes": "00" * 31})]}, "token "),
        ({"tokens": [token_of(kind="server")]}, "token "),
        ({"labels": labels_of(SERVER_COUNT_MAX + 1, 0)}, "its labels"),
        ({"labels": labels_of(1, LABEL_COUNT_MAX + 1)}, "its labels"),
        ({"policies": [POLICY_VERSION]}, "do not end with the one in force"),
        ({"acts": own_fields()["acts"] * 200}, "its history"),
    ],
)
def test_what_types_and_limits_do_not_allow_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BackupError, match=why):
        from_file(forged(json.dumps(own_fields() | changes).encode()))


@pytest.mark.parametrize(("servers", "count"), [(SERVER_COUNT_MAX, 0), (1, LABEL_COUNT_MAX)])
def test_as_many_labels_as_the_table_can_hold_are_taken(servers: int, count: int) -> None:
    fields = own_fields() | {"labels": labels_of(servers, count)}
    backup = from_file(forged(json.dumps(fields).encode()))
    assert [len(labels) for labels in backup.labels.values()] == [count] * servers


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{}", b"not json", b"\xff", b"[]", b"1"])
def test_other_json_is_refused(body: bytes) -> None:
    with pytest.raises(BackupError, match="makes no sense"):
        from_file(forged(body))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text('a0\\"{[é\ud800\udc00\U0001f600', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", BYTES]), inner, max_size=2)
        | st.sampled_from(["00", "0g", "é"]).map(lambda text: {BYTES: text})
    ),
    max_leaves=12,
)


@given(JSON, st.booleans(), st.sampled_from(["utf-8", "utf-16-le", "utf-32-be"]))
@settings(max_examples=examples(400))
def test_json_is_read_at_one_go_as_it_is_piece_by_piece(
    value: Any, escaped: bool, encoding: str
) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    body = text.encode(encoding, errors="surrogatepass")
    found: list[object] = []
    for at_one_go in (True, False):
        try:
            found.append(read_json(body) if at_one_go else from_json(load_shallow(body)))
        except (ValueError, TypeError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


def test_a_newer_file_is_refused_with_one_sentence() -> None:
    file = to_file(make_backup(founded().state)).replace(b"backup 1 ", b"backup 2 ", 1)
    with pytest.raises(BackupError, match="it has format 2, and this gpupool reads 1"):
        from_file(file)


def test_no_secret_is_in_a_file() -> None:
    source = founded()
    secret = b"\x5a" * 32
    digest = sha256(secret).digest()
    do(source, c.CreateToken(TokenId("x"), TokenKind.USER, "ada", digest, FAR, "root"))
    file = to_file(make_backup(source.state))
    assert digest.hex().encode() in file
    assert secret.hex().encode() not in file
    assert b"PRIVATE KEY" not in file
