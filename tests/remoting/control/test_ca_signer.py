"""The CA's key is in the signer's process, and nowhere else in the clear."""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from tests.ca_keys import in_memory, open_key, read_authority, scalar

from gpupool.pool.errors import AuthenticationError, GpupoolError, StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Server
from gpupool.remoting.daemon.separate import fork_signer
from gpupool.remoting.privileges import former_ca, remote_vault
from gpupool.remoting.privileges.remote_vault import RemoteVault
from gpupool.remoting.privileges.signer_process import RECORD, SECRET, SignerFolders
from gpupool.remoting.protocol.sealed_key import is_sealed, public_of
from gpupool.remoting.protocol.signer_messages import SIGNER, CreateCa, GiveKeys, KeepKey, Made
from gpupool.remoting.transport.authority import ca_vault
from gpupool.remoting.transport.authority.ca_bundle import belongs, keys_of
from gpupool.remoting.transport.authority.ca_key import AuthoritySigner
from gpupool.remoting.transport.authority.ca_vault import CaVault, make_request
from gpupool.remoting.transport.pki import (
    SERVER_VALID,
    Authority,
    create_ca,
    create_key_and_csr,
    sign_server,
)

A, B = ServerId("a" * 12), ServerId("b" * 12)
NOW = datetime(2026, 11, 22, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
LOG = logging.getLogger("test")

FRONT = """
import logging, os, pathlib, sys
from gpupool.remoting.daemon.separate import fork_signer
from gpupool.remoting.privileges import former_ca
from gpupool.remoting.privileges.signer_process import SignerFolders
from gpupool.remoting.protocol.signer_messages import CreateCa
from gpupool.remoting.transport.authority.ca_key import AuthoritySigner
from gpupool.remoting.transport.pki import Authority, create_key_and_csr
folder = pathlib.Path(sys.argv[1])
state, own = (os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
with former_ca.opened(folder / "former") as former:
    vault = fork_signer(SignerFolders(own, state, former), logging.getLogger("x"))
AuthoritySigner(vault.former, vault, lambda: 10**12).sign("a" * 12, create_key_and_csr("a" * 12)[1])
ca, key = (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()
authority = Authority(ca, key)
signer = AuthoritySigner(authority, vault, lambda: 10**12)
kept = signer.sign("a" * 12, create_key_and_csr("a" * 12)[1])
(folder / "made.key").write_bytes(vault.ask(CreateCa("cluster-1", 10**12, 2, ca))[1])
print(vault.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the state directory of an older build."""
    authority = create_ca("cluster-1", NOW)
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    (tmp_path / "ca.key").write_bytes(authority.key_pem)
    return tmp_path


@pytest.fixture
def signer(state: Path) -> Iterator[RemoteVault]:
    folder, own = (os.open(state, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    vault = fork_signer(SignerFolders(own, folder), LOG)
    yield vault
    vault.end()
    os.close(folder)
    os.close(own)


def test_a_signer_that_was_late_once_signs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one delay of more than 1 s, a server once had no signer until its next start."""
    monkeypatch.setattr(remote_vault, "ANSWER_TIMEOUT_S", 0.05)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(SIGNER.encode(Made((b"public",))))
        vault = RemoteVault(ours, -1)
        for key in (b"1", b"2"):
            with pytest.raises(AuthenticationError, match="does not answer yet"):
                vault.ask(KeepKey(key))
        for answer in (b"one", b"two", b"three"):
            theirs.send(SIGNER.encode(Made((answer,))))
        assert vault.ask(KeepKey(b"3")) == (b"three",)
        theirs.send(SIGNER.encode(Made((b"four",))))
        assert vault.ask(KeepKey(b"4")) == (b"four",)
    with pytest.raises(AuthenticationError, match="is not there"):
        vault.ask(KeepKey(b"5"))
    vault.end()


def test_a_signer_that_has_ended_is_missed(signer: RemoteVault) -> None:
    assert signer.is_there()
    os.kill(signer.pid, 9)
    os.waitid(os.P_PID, signer.pid, os.WEXITED | os.WNOWAIT)
    assert not signer.is_there()
    signer.hang_up()
    assert not signer.is_there()


def test_no_key_of_the_ca_is_in_the_memory_of_the_server(state: Path) -> None:
    plain = (state / "ca.key").read_bytes()
    former = former_pool(state / "former")
    with subprocess.Popen(
        [sys.executable, "-c", FRONT, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as front:
        assert front.stdout is not None
        signer = int(front.stdout.readline())
        made = read_made(state)
        sealed = (state / "ca.key").read_bytes()
        body = plain.splitlines()[1]
        secret = (state / SECRET).read_bytes()
        wanted = (sealed, scalar(plain), body, scalar(made), made.splitlines()[1], secret)
        assert in_memory(front.pid, *wanted) == [True, False, False, False, False, False]
        # With --ca the server has the certificate of a former CA, and not its key either.
        wanted = (
            former.certificate_pem.splitlines()[1],
            scalar(former.key_pem),
            former.key_pem.splitlines()[1],
        )
        assert in_memory(front.pid, *wanted) == [True, False, False]
        if os.geteuid() == 0:
            assert in_memory(signer, secret) == [True]  # which shows that the search finds it
        status = Path(f"/proc/{signer}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        assert Path(f"/proc/{signer}/mem").stat().st_uid == 0  # it is not dumpable
        front.communicate()


def former_pool(folder: Path) -> Authority:
    """Make the CA of a former pool in a folder, its key in the clear."""
    folder.mkdir()
    authority = create_ca("cluster-0", NOW)
    (folder / "ca.pem").write_bytes(authority.certificate_pem)
    (folder / "ca.key").write_bytes(authority.key_pem)
    return authority


def started_with(former: Path, state: Path) -> Authority:
    """Return a former CA as a new signer in ``state`` knows it."""
    state.mkdir(exist_ok=True)
    folder, own = (os.open(state, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    try:
        with former_ca.opened(former) as files:
            vault = fork_signer(SignerFolders(own, folder, files), LOG)
        vault.end()
    finally:
        os.close(folder)
        os.close(own)
    assert vault.former is not None
    return vault.former


def test_a_former_ca_is_taken_sealed_or_in_the_clear_and_no_other(tmp_path: Path) -> None:
    plain, first, second = (tmp_path / name for name in ("plain", "first", "second"))
    made = former_pool(plain)
    taken = started_with(plain, first)
    assert is_sealed(taken.key_pem)
    assert taken.certificate_pem == made.certificate_pem
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "ca.pem").write_bytes(taken.certificate_pem)
    (copied / "ca.key").write_bytes(taken.key_pem)
    with pytest.raises(GpupoolError, match=r"there is no signer\.key beside it"):
        started_with(copied, second)
    shutil.copy(first / SECRET, copied / SECRET)
    again = started_with(copied, second)
    assert again.key_pem != taken.key_pem
    assert scalar(open_key(second, again.key_pem)) == scalar(made.key_pem)
    (copied / SECRET).write_bytes(b"x" * 32)
    with pytest.raises(GpupoolError, match="sealed to another signer"):
        started_with(copied, second)
    (copied / "ca.key").write_bytes(create_ca("cluster-0", NOW).key_pem)
    with pytest.raises(GpupoolError, match="does not belong to its certificate"):
        started_with(copied, second)
    (copied / "ca.key").unlink()
    os.mkfifo(copied / "ca.key")
    with pytest.raises(GpupoolError, match="is no plain file"):
        started_with(copied, second)
    (copied / "ca.key").unlink()
    with pytest.raises(StorageError, match="cannot read the CA in"):
        started_with(copied, second)


def read_made(state: Path) -> bytes:
    made = state / "made"
    made.mkdir()
    (made / SECRET).write_bytes((state / SECRET).read_bytes())
    (made / "ca.key").write_bytes((state / "made.key").read_bytes())
    (made / "ca.pem").write_bytes((state / "ca.pem").read_bytes())
    return read_authority(made).key_pem


def test_keys_of_an_older_build_are_sealed_at_the_start(signer: RemoteVault, state: Path) -> None:
    sealed = (state / "ca.key").read_bytes()
    assert is_sealed(sealed)
    assert belongs(sealed, (state / "ca.pem").read_bytes())
    assert (state / "ca.key").stat().st_mode & 0o777 == 0o600
    authority = Authority((state / "ca.pem").read_bytes(), sealed)
    key, csr = create_key_and_csr(A)
    long = AuthoritySigner(authority, signer, lambda: NOW_MS, valid=50 * SERVER_VALID)
    certificate = long.sign(A, csr)
    made = x509.load_pem_x509_certificate(certificate)
    assert made.not_valid_after_utc - NOW == SERVER_VALID
    web = long.sign_web(csr, Server(A, "a", "a:1", voter=True))
    for each in (certificate, web):
        found = x509.load_pem_x509_certificate(each)
        limits = found.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert not limits.ca
    for name in ("", "a.b", "x" * 65):
        with pytest.raises(AuthenticationError, match="no server's id"):
            long.sign(ServerId(name), csr)
    other = CaVault.of_this_process(lambda: 0.0)
    asked = make_request(other.public(), certificate, key)
    (given,) = signer.ask(GiveKeys((sealed,), A, asked))
    assert other.keep(given) == given
    assert public_of(given) == public_of(sealed)
    with pytest.raises(AuthenticationError, match="another signer"):
        signer.ask(KeepKey(given))
    entry = json.loads((state / RECORD).read_text())
    assert (entry["what"], entry["server"]) == ("gave the CA's key", A)


def test_a_start_under_another_user_finds_the_key_or_puts_it_aside(state: Path) -> None:
    apart = state / "keeper"
    apart.mkdir()
    plain = (state / "ca.key").read_bytes()

    def start(own: Path) -> bytes:
        folders = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in (own, state)]
        fork_signer(SignerFolders(folders[0], folders[1]), LOG).end()
        for each in folders:
            os.close(each)
        return (state / "ca.key").read_bytes() if (state / "ca.key").exists() else b""

    first, second = start(state), start(apart)
    assert first != second
    assert public_of(first) == public_of(second) == public_of(plain)
    third = start(state)
    assert third != second
    assert scalar(read_authority_of(state)) == scalar(plain)
    (state / SECRET).unlink()
    assert start(state) == b""
    assert (state / "ca.key.aside").read_bytes() == third


def read_authority_of(state: Path) -> bytes:
    return open_key(state, (state / "ca.key").read_bytes())


def test_the_key_is_given_to_one_vault_of_a_server_of_the_ca() -> None:
    now = [0.0]
    vault, theirs, thief = (CaVault.of_this_process(lambda: now[0]) for _ in range(3))
    authority, strange = create_ca("cluster-1", NOW), create_ca("cluster-1", NOW)
    sealed = vault.keep(authority.key_pem)
    key, csr = create_key_and_csr(B)
    certificate = sign_server(authority, csr, B, NOW)
    forged = sign_server(strange, csr, B, NOW)
    good = make_request(theirs.public(), certificate, key)
    for server, request, why in (
        (A, good, "another server's"),
        (B, make_request(theirs.public(), forged, key), "no server's of this CA"),
        (B, make_request(theirs.public(), certificate, create_key_and_csr(B)[0]), "malformed"),
        (B, b"", "malformed"),
        (B, b"x" * 5000, "too long"),
    ):
        with pytest.raises(AuthenticationError, match=why):
            vault.ask(GiveKeys((sealed,), server, request))
    assert theirs.keep(*vault.ask(GiveKeys((sealed,), B, good)))
    # Nor by a CA that the asking server has made: only what its CA vouches for is given.
    (both,) = vault.ask(GiveKeys((sealed, vault.keep(strange.key_pem)), B, good))
    assert [public_of(each) for each in keys_of(both)] == [public_of(sealed)]
    with pytest.raises(AuthenticationError, match="another vault of this server"):
        vault.ask(GiveKeys((sealed,), B, make_request(thief.public(), certificate, key)))
    following, sealed = vault.ask(CreateCa("cluster-1", NOW_MS, 2, authority.certificate_pem))
    (given,) = vault.ask(GiveKeys((sealed,), B, good))
    assert belongs(theirs.keep(given), following)


def test_calls_of_the_signer_are_bounded() -> None:
    now = [0.0]
    vault = CaVault.of_this_process(lambda: now[0])
    asked = CreateCa("cluster-1", NOW_MS, 1, b"")
    for _ in range(ca_vault.CREATION_BURST):
        vault.ask(asked)
    with pytest.raises(AuthenticationError, match="makes CAs no more for a while"):
        vault.ask(asked)
    now[0] = 601.0
    vault.ask(asked)
