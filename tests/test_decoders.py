"""Every decoder of data from outside this process: any bytes give a value or its one error.

Most folders fuzz their own decoders as well, in more depth. Here is the whole list, with rubbish,
and with valid input in which something was changed; an error of another kind is a bug. Messages of
families have a walk of their own, in ``test_message_families``.
"""

import base64
import json
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.monitoring.records import record
from tests.pool.pool_strategies import founding
from tests.properties import examples

from gpupool.cli.commands import admin
from gpupool.cli.lib import options as cli_options
from gpupool.cli.lib import settings as settings_files
from gpupool.consensus.protocol import membership, raft_messages
from gpupool.consensus.storage import snapshot
from gpupool.consensus.storage.disk import FileDisk
from gpupool.consensus.storage.journal import JOURNAL, Journal
from gpupool.pool import values
from gpupool.pool.errors import (
    AuthenticationError,
    RemoteProtocolError,
    StorageError,
    UsageError,
)
from gpupool.pool.model.codec import CodecError
from gpupool.pool.model.commands import unwrap, wrap
from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.policy import Policy
from gpupool.pool.model.state import PoolState, TokenKind
from gpupool.pool.scheduling.filters import parse_filter
from gpupool.pool.transitions import backup, kept_records, policy_versions
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.array_api.server import array_exchange, array_results, element_types
from gpupool.remoting.array_api.server import array_wire as arrays_wire
from gpupool.remoting.client import credentials
from gpupool.remoting.daemon import record_files, state_dir
from gpupool.remoting.host import orphan_reaper
from gpupool.remoting.program import door_choice
from gpupool.remoting.protocol import framing, handshake
from gpupool.remoting.protocol.addresses import Address, parse_address, parse_listen
from gpupool.remoting.protocol.token_text import TokenText, format_token, parse_token
from gpupool.remoting.server.listener import router
from gpupool.remoting.transport.pki import (
    Authority,
    check_authority,
    cluster_id_of,
    create_ca,
    create_key_and_csr,
    fingerprint,
    sign_server,
)


@dataclass(frozen=True)
class Case:
    """A decoder, its permitted errors, and one input that it reads."""

    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    valid: bytes


def text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return ``decode`` for bytes; any bytes reach it as a text."""
    return lambda data: decode(data.decode("utf-8", errors="replace"))


def file(name: str, decode: Callable[[Path], object], folder: Path) -> Callable[[bytes], object]:
    """Return ``decode`` for the content of a file of this name."""

    def decode_file(data: bytes) -> object:
        path = folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return decode(path)

    return decode_file


def read_state_dir(folder: Path) -> object:
    opened = state_dir.open_state_dir(folder)
    opened.close()
    return opened.identity


def read_journal(folder: Path, data: bytes) -> object:
    (folder / JOURNAL).write_bytes(data)
    disk = FileDisk(folder)
    try:
        return Journal.open(disk)
    finally:
        disk.close()


def valid_journal(folder: Path) -> bytes:
    disk = FileDisk(folder / "valid")
    journal = Journal.create(disk)
    journal.set_vote(1, ServerId("a"))
    for index in range(2, 6):
        journal.append(b"command" * index, index, 1)
        journal.sync()
    disk.close()
    return (folder / "valid" / JOURNAL).read_bytes()


def valid_state() -> PoolMachine:
    machine = PoolMachine(PoolState())
    for index, command in enumerate(founding(), start=1):
        machine.apply(index, wrap(command, at_ms=1000, ttl_ms=0))
    return machine


def plain(decode: Callable[[Any], object]) -> Callable[[bytes], object]:
    """Return ``decode`` for the CBOR of its argument."""
    return lambda data: decode(framing.load(data))


IDENTITY = {
    "schema": 1,
    "server": "0" * 12,
    "cluster_id": "c",
    "pool": "lab",
    "name": "a",
    "witness": False,
    "founder": True,
    "members": {"0" * 12: "a:1"},
    "complete": True,
    "listen": "",
}
CREDENTIALS = {
    "schema": 1,
    "cluster_id": "c",
    "pool": "lab",
    "user": "ada",
    "token": "0" * 12,
    "secret": "00" * 32,
    "ca_pem": "PEM",
    "addresses": ["a:1"],
}
ACT = b'{"schema":1,"number":1,"index":1,"at":1,"kind":"k","by":"b","subject":"s","text":"t"}\n'
TOKEN = TokenText("c", TokenKind.USER, TokenId("0" * 12), bytes(32), bytes(32), (Address("a", 1),))


def cases(folder: Path) -> dict[str, Case]:
    """Return the list; ``folder`` is for those that read files."""
    machine = valid_state()
    packed = policy_versions.pack_text("[defaults]\nmax_gpus = 2\n")
    remote, usage, storage = (RemoteProtocolError,), (UsageError,), (StorageError,)
    snapshot_bytes = snapshot.encode_snapshot(
        snapshot.Snapshot(9, 1, (ServerId("a"),), machine.snapshot())
    )
    ca = create_ca("c", datetime.now(UTC))
    header_size = arrays_wire.HEADER.size
    return {
        # from the network
        "CBOR": Case(framing.load, remote, framing.dump({"a": [1, b"x", None]})),
        "command": Case(
            plain(unwrap),
            (*remote, CodecError),
            framing.dump(wrap(founding()[0], at_ms=1, ttl_ms=0)),
        ),
        "first bytes": Case(router.route, remote, handshake.client_hello(bytes(16), bytes(16))),
        "peer's frame": Case(
            lambda d: raft_messages.FrameReader().body(d),
            remote,
            raft_messages.FrameWriter(1).frame(b"body"),
        ),
        "peer's message": Case(
            raft_messages.decode_message,
            remote,
            raft_messages.encode_message({"type": "response_vote", "term": 3}),
        ),
        "voters": Case(
            membership.decode_voters, remote, membership.encode_voters((ServerId("a"),))
        ),
        "session hello": Case(
            lambda d: handshake.parse_client_hello(d, bytes(16)),
            remote,
            handshake.client_hello(bytes(16), bytes(16)),
        ),
        "array frame": Case(
            lambda d: arrays_wire.decode_header(d[:header_size].ljust(header_size, b"\0")),
            remote,
            arrays_wire.HEADER.pack(9, arrays_wire.Kind.CALLS, 0, 0, 1, 1, 0),
        ),
        "array body": Case(arrays_wire.decode_body, remote, framing.dump([1, "x"])),
        "array peers": Case(
            plain(array_exchange.introduction),
            remote,
            framing.dump({"key": bytes(32), "others": [None]}),
        ),
        "array dtype": Case(
            plain(element_types.dtype_of), remote, framing.dump(["V", 8, False, ["a", 0, "<f8"]])
        ),
        "array meta": Case(
            plain(array_results.decode_meta),
            remote,
            framing.dump([16, ["V", 8, False, ["a", 0, "<f8"]], [3], [8]]),
        ),
        # from people
        "token": Case(text(parse_token), (AuthenticationError,), format_token(TOKEN).encode()),
        "address": Case(text(parse_address), usage, b"[fd00::4]:80"),
        "filter": Case(text(parse_filter), (ValueError,), b"gpu.memory >= 40GiB"),
        "count": Case(text(values.parse_count), (ValueError,), b"12"),
        "fraction": Case(text(values.parse_fraction), (ValueError,), b"0.25"),
        "duration": Case(text(values.parse_duration), (ValueError,), b"1h30m"),
        "listen": Case(text(parse_listen), usage, b":7470"),
        "emulation": Case(text(values.parse_emulation), (ValueError,), b"4:16G"),
        "pair": Case(text(values.parse_pair), (ValueError,), b"a=b"),
        "name": Case(text(values.parse_name), (ValueError,), b"gpu-1"),
        "lease name": Case(text(admin.parse_lease), (ValueError,), b"7f3a"),
        "time": Case(text(cli_options.parse_since), (ValueError,), b"2026-11-21T14:30"),
        "program's Python": Case(
            text(lambda t: door_choice.parse_answer("python", t)), (), b"python:3.11\ncupy:\n"
        ),
        # from files
        "line of a lease": Case(
            lambda d: kept_records.record_of(d.decode()),
            (ValueError,),
            kept_records.line_of(record(1)).encode(),
        ),
        "settings": Case(
            lambda d: settings_files.parse(d, Path("x")), usage, b"[run]\ncount = 2\n"
        ),
        "policy text": Case(policy_versions.unpack_text, (policy_versions.UnpackError,), packed),
        "policy draft": Case(
            policy_versions.unpack_draft,
            (policy_versions.UnpackError,),
            policy_versions.pack_draft(policy_versions.Draft(packed, Policy())),
        ),
        "backup": Case(
            backup.from_file,
            (backup.BackupError,),
            backup.to_file(backup.make_backup(machine.state)),
        ),
        "credentials": Case(
            file("credentials.json", credentials.load_credentials, folder),
            storage,
            json.dumps(CREDENTIALS).encode(),
        ),
        "identity": Case(
            file("identity.json", lambda path: read_state_dir(path.parent), folder),
            storage,
            json.dumps(IDENTITY).encode(),
        ),
        "audit file": Case(
            file("audit.jsonl", lambda path: record_files.read_acts(path.parent), folder),
            storage,
            ACT,
        ),
        "former workers": Case(
            text(orphan_reaper._parse),  # pyright: ignore[reportPrivateUsage]
            storage,
            b'{"boot": "b", "workers": [[1, 2]], "directory": "/run/gpupool/workers"}',
        ),
        "snapshot": Case(snapshot.decode_snapshot, (ValueError,), snapshot_bytes),
        "journal": Case(lambda d: read_journal(folder, d), storage, valid_journal(folder)),
        "CA": Case(
            lambda d: cluster_id_of(Authority(d, ca.key_pem)),
            (AuthenticationError,),
            ca.certificate_pem,
        ),
        "CA key": Case(
            lambda d: check_authority(Authority(ca.certificate_pem, d)),
            (AuthenticationError,),
            ca.key_pem,
        ),
        "fingerprint": Case(fingerprint, (AuthenticationError,), ca.certificate_pem),
        "certificate request": Case(
            lambda d: sign_server(ca, d, ServerId("0" * 12), datetime.now(UTC)),
            (AuthenticationError,),
            create_key_and_csr(ServerId("0" * 12))[1],
        ),
    }


with tempfile.TemporaryDirectory() as somewhere:
    NAMES = tuple(cases(Path(somewhere)))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return cases(tmp_path_factory.mktemp("decoders"))


@st.composite
def changed(draw: st.DrawFn, valid: bytes) -> bytes:
    """Return ``valid`` with bytes changed, cut out, put in, or its end cut off."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([0, 0, 1, 1, 4, 1000]))
        data[at : at + length] = draw(st.binary(max_size=4))
    return bytes(data)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_anything_is_read_or_refused(
    known: dict[str, Case], name: str, data: st.DataObject
) -> None:
    case = known[name]
    given_bytes = data.draw(st.one_of(changed(case.valid), changed(case.valid), st.binary()))
    with suppress(*case.errors):
        case.decode(given_bytes)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_valid_is_read(known: dict[str, Case], name: str) -> None:
    known[name].decode(known[name].valid)


def test_a_ca_whose_key_is_of_an_unknown_kind_is_refused() -> None:
    """Found by the list above: such a certificate loads, and its key does not."""
    ca = create_ca("c", datetime.now(UTC))
    der = ssl.PEM_cert_to_DER_cert(ca.certificate_pem.decode())
    p256 = bytes.fromhex("06082a8648ce3d030107")
    assert p256 in der
    strange = ssl.DER_cert_to_PEM_cert(der.replace(p256, p256[:-1] + b"\x7f")).encode()
    with pytest.raises(AuthenticationError, match="malformed"):
        check_authority(Authority(strange, ca.key_pem))


def test_a_key_of_an_unknown_curve_is_refused() -> None:
    """Found by the list above, too."""
    ca = create_ca("c", datetime.now(UTC))
    lines = ca.key_pem.decode().splitlines()
    der = base64.b64decode("".join(lines[1:-1]))
    p256 = bytes.fromhex("06082a8648ce3d030107")
    assert p256 in der
    body = base64.encodebytes(der.replace(p256, p256[:-1] + b"\x7f")).decode()
    strange = f"{lines[0]}\n{body}{lines[-1]}\n".encode()
    with pytest.raises(AuthenticationError, match="malformed"):
        check_authority(Authority(ca.certificate_pem, strange))
