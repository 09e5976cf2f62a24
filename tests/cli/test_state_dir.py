"""The state directory: one process, nobody else's eyes, crashes in between, full disks."""

import errno
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests import commands

from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Server
from gpupool.remoting.daemon.enter_pool import is_trusted
from gpupool.remoting.daemon.server_identity import Member, ServerIdentity
from gpupool.remoting.daemon.state_dir import (
    CA_CERTIFICATE,
    CA_KEY,
    CERTIFICATE,
    KEY,
    StateDir,
    open_state_dir,
    refuse_other_folder,
)
from gpupool.remoting.local.files import replace_file
from gpupool.remoting.transport.authority.ca_bundle import issuer_of
from gpupool.remoting.transport.pki import (
    control_context,
    create_ca,
    create_key_and_csr,
    sign_server,
)

IDENTITY = ServerIdentity(
    server=ServerId("a1b2c3d4e5f6"),
    cluster_id="c0ffee",
    pool="lab",
    name="server-a",
    witness=False,
    founder=True,
    members=(Member(ServerId("a1b2c3d4e5f6"), "10.0.0.4:7470"),),
)


def created(path: Path) -> StateDir:
    state = open_state_dir(path)
    state.begin(IDENTITY)
    state.finish(IDENTITY)
    return state


def test_a_server_is_the_same_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state"
    state = created(path)
    assert state.next_incarnation() == 1
    state.close()
    again = open_state_dir(path)
    assert not again.is_new
    assert again.identity is not None
    assert again.identity.members == IDENTITY.members
    assert again.next_incarnation() == 2
    again.close()
    assert path.stat().st_mode & 0o777 == 0o700
    assert all(f.stat().st_mode & 0o077 == 0 for f in path.iterdir())


def test_where_the_others_are_is_remembered(tmp_path: Path) -> None:
    state = created(tmp_path)
    here = Server(IDENTITY.server, "gpu-1", IDENTITY.members[0].address, voter=True)
    other = Server(ServerId("bb"), "gpu-2", "10.0.0.5:7470", True, names=("b.example.org:7470",))
    state.remember_members((here, other))
    written = (tmp_path / "identity.json").stat().st_ino
    state.remember_members((here, other))
    assert (tmp_path / "identity.json").stat().st_ino == written, "nothing has changed"
    state.close()
    again = open_state_dir(tmp_path)
    assert again.identity is not None
    assert again.identity.members[1:] == (
        Member(other.id, "10.0.0.5:7470", "gpu-2", ("b.example.org:7470",)),
    )
    places = ["10.0.0.5:7470", "b.example.org:7470"]
    assert again.addresses_of(other.id, None) == places
    moved = replace(other, address="10.0.0.9:7470", names=())
    assert again.addresses_of(other.id, moved) == ["10.0.0.9:7470", *places]
    assert not again.is_new
    again.close()


def test_a_certificate_and_its_key_are_replaced_together(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = create_ca("c0ffee", now)
    state = created(tmp_path)
    state.write(CA_CERTIFICATE, authority.certificate_pem)
    key, csr = create_key_and_csr(IDENTITY.server)
    state.write(KEY, key)  # as an older build wrote them
    state.write(CERTIFICATE, sign_server(authority, csr, IDENTITY.server, now))
    control_context(state.tls_identity())
    key, csr = create_key_and_csr(IDENTITY.server)
    certificate = sign_server(authority, csr, IDENTITY.server, now)
    state.write(CERTIFICATE, certificate + key)  # a crash follows, and the old key is still there
    control_context(state.tls_identity())
    state.write_certificate(certificate, key)
    control_context(state.tls_identity())
    assert not (tmp_path / KEY).exists()
    assert (tmp_path / CERTIFICATE).stat().st_mode & 0o777 == 0o600
    state.close()


def test_permissions_are_tightened(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_state_dir(tmp_path).close()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    state = open_state_dir(tmp_path)
    code = "import sys; from pathlib import Path; "
    code += "from gpupool.remoting.daemon.state_dir import open_state_dir; "
    code += "open_state_dir(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "is in use: another gpupool join runs with it" in done.stderr
    state.close()


@pytest.mark.parametrize(
    ("signed_by", "trusts", "days", "has_key", "trusted"),
    [
        ("old", ("old",), 0, False, True),
        ("old", ("old", "new"), 0, False, True),
        ("old", ("new",), 0, True, False),
        ("old", ("old",), 400, False, False),
        ("old", ("old",), 400, True, True),
        ("", ("old",), 0, False, False),
    ],
)
def test_a_pool_trusts_a_server_whose_certificate_is_of_a_ca_that_it_has(
    tmp_path: Path,
    signed_by: str,
    trusts: tuple[str, ...],
    days: int,
    has_key: bool,
    trusted: bool,
) -> None:
    """The holder of the CA's key replaces an expired certificate."""
    now = datetime.now(UTC)
    authorities = {name: create_ca("c0ffee", now) for name in ("old", "new")}
    state = created(tmp_path)
    if signed_by:
        key, csr = create_key_and_csr(IDENTITY.server)
        signed = sign_server(authorities[signed_by], csr, IDENTITY.server, now)
        state.write_certificate(signed, key)
    if has_key:
        state.write(CA_KEY, authorities["old"].key_pem)
    pool = b"".join(authorities[name].certificate_pem for name in trusts)
    assert is_trusted(state, pool, now + timedelta(days=days)) is trusted
    state.close()


def test_a_crash_during_the_creation_starts_afresh(tmp_path: Path) -> None:
    state = open_state_dir(tmp_path)
    state.begin(IDENTITY)
    (tmp_path / "consensus").mkdir()
    (tmp_path / "consensus" / "journal").write_text("half")
    state.close()
    again = open_state_dir(tmp_path)
    assert again.is_new
    assert again.identity is not None  # so that a join can be repeated under the same id
    again.begin(IDENTITY)
    assert not (tmp_path / "consensus").exists()
    again.close()


def test_a_journal_without_an_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "consensus").mkdir()
    with pytest.raises(StorageError, match="no identity"):
        open_state_dir(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 2}', "null"])
def test_a_damaged_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(StorageError, match="makes no sense"):
        open_state_dir(tmp_path)
    open_state_dir_again_is_possible = tmp_path / "identity.json"
    open_state_dir_again_is_possible.unlink()
    open_state_dir(tmp_path).close()


@pytest.mark.parametrize("text", ["", "many"])
def test_a_damaged_incarnation_is_refused(tmp_path: Path, text: str) -> None:
    state = created(tmp_path)
    (tmp_path / "incarnation").write_text(text)
    with pytest.raises(StorageError, match="incarnation"):
        state.next_incarnation()
    state.close()


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot use the state directory") as caught:
        open_state_dir(tmp_path / "file")
    assert caught.value.hint == "it must be a folder"


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = created(tmp_path)

    def full(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = (tmp_path / "incarnation").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageError, match="no space left") as caught:
            state.next_incarnation()
    assert "free at least" in caught.value.hint
    assert (tmp_path / "incarnation").read_bytes() == before
    state.close()


def test_a_disk_that_is_nearly_full_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Free:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(os, "statvfs", lambda _path: Free())  # pyright: ignore
    with pytest.raises(StorageError, match="no space left"):
        open_state_dir(tmp_path)


def test_a_former_self_is_remembered_until_it_is_removed(tmp_path: Path) -> None:
    state = created(tmp_path)
    state.write(CA_KEY, b"key")
    again = replace(IDENTITY, server=ServerId("new"), founder=False, former=IDENTITY.server)
    state.begin_again(again)
    assert state.is_new, "a start in between knows that nothing here was ever used"
    assert not state.read(CA_KEY)
    state.finish(again)
    state.close()
    state = open_state_dir(tmp_path)
    assert state.identity == replace(again, complete=True)
    state.forget_former()
    assert b"former" not in state.read("identity.json")
    state.close()


# --- exchanges of the CA --------------------------------------------------------------------------


class Exchange:
    """A state directory, and the CAs that its pool has one after the other."""

    def __init__(self, path: Path) -> None:
        self.state = created(path)
        self.path = path
        now = datetime.now(UTC)
        self.cas = [create_ca("c0ffee", now, number=number) for number in (1, 2, 3)]
        self.state.write(CA_CERTIFICATE, self.cas[0].certificate_pem)
        self.state.write(CA_KEY, self.cas[0].key_pem)
        self.certified(0)

    def certified(self, number: int) -> None:
        key, csr = create_key_and_csr(IDENTITY.server)
        signed = sign_server(self.cas[number], csr, IDENTITY.server, datetime.now(UTC))
        self.state.keep_certificate(signed, key)

    def trust(self, *numbers: int) -> None:
        bundle = b"".join(self.cas[each].certificate_pem for each in numbers)
        self.state.trust(bundle, self.cas[numbers[0]].key_pem)

    def shown(self) -> list[int]:
        """Return the CAs that signed the usual certificate, and the newest one."""
        usual, newest = self.state.tls_identities()
        return [
            number
            for identity in (usual, newest or usual)
            for number, ca in enumerate(self.cas)
            if issuer_of(identity.certificate_path.read_bytes(), ca.certificate_pem)
        ]


def test_a_ca_is_exchanged_and_a_new_certificate_takes_the_place_of_the_old_one(
    tmp_path: Path,
) -> None:
    lab = Exchange(tmp_path / "state")
    lab.state.keep_next(lab.cas[1])
    lab.trust(0, 1)
    assert lab.shown() == [0, 0]
    lab.certified(1)
    assert lab.shown() == [0, 1]
    assert lab.state.next_authority() == lab.cas[1]
    lab.trust(1)
    assert lab.shown() == [1, 1]
    assert lab.state.read(CA_KEY) == lab.cas[1].key_pem
    assert lab.state.next_authority() is None
    lab.certified(1)
    assert lab.shown() == [1, 1]
    for identity in lab.state.tls_identities():
        if identity is not None:
            control_context(identity)


def test_a_server_that_was_away_comes_from_one_exchange_into_the_next(tmp_path: Path) -> None:
    """The simulator found it: its usual certificate was of a CA that nobody trusts any more."""
    lab = Exchange(tmp_path / "state")
    lab.trust(0, 1)
    lab.certified(1)
    lab.trust(1, 2)
    assert lab.shown() == [1, 1]
    lab.certified(2)
    assert lab.shown() == [1, 2]


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_the_end_of_an_exchange_that_a_crash_has_broken_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    lab = Exchange(tmp_path / "state")
    lab.trust(0, 1)
    lab.certified(1)
    done: list[str] = []

    def write(self: StateDir, name: str, data: bytes) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(name)
        replace_file(self.path / name, data)

    with monkeypatch.context() as patch:
        patch.setattr(StateDir, "write", write)
        if writes == 3:
            lab.trust(1)
        else:
            with pytest.raises(KeyboardInterrupt):
                lab.trust(1)
    assert done == [CERTIFICATE, CA_KEY, CA_CERTIFICATE][:writes]
    # What a start finds can be used, and the order is carried out whole.
    for identity in lab.state.tls_identities():
        if identity is not None:
            control_context(identity)
    lab.trust(1)
    assert lab.shown() == [1, 1]
    assert lab.state.read(CA_CERTIFICATE) == lab.cas[1].certificate_pem
    assert not (lab.path / "server-next.pem").exists()


def looks(path: Path) -> list[tuple[str, int, int]]:
    every = [path, *sorted(path.rglob("*"))]
    return [(str(each), each.lstat().st_mode, each.lstat().st_uid) for each in every]


@pytest.mark.parametrize(
    ("names", "held"),
    [
        (["notes"], "notes"),
        (["keeper/letter", ".ssh/authorized_keys"], r"\.ssh, keeper"),
        (["keeper/letter"], "keeper"),
        (["ca.key"], "ca.key"),
        ([".bashrc", ".config/x"], r"\.bashrc"),
        (["lock", *(f"file-{number}" for number in range(9))], "file-0, .* and more"),
    ],
)
def test_a_folder_that_is_no_servers_stays_as_it_is(
    tmp_path: Path, names: list[str], held: str
) -> None:
    path = tmp_path / "home"
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    path.chmod(0o755)
    before = looks(path)
    for look in (open_state_dir, refuse_other_folder):
        with pytest.raises(StorageError, match="is not the state directory") as caught:
            look(path)
        assert caught.value.why is not None
        assert re.search(held, caught.value.why)
    for command in ("join --emulate 1 --listen 127.0.0.1:1", "recover --force"):
        words = [*commands.GPUPOOL, *command.split(), "--state-dir", str(path)]
        done = commands.finish(words, env=os.environ, timeout=60)
        assert done.returncode != 0
        assert "is not the state directory of a server" in done.stderr
    assert looks(path) == before


def test_a_folder_of_a_server_that_has_only_begun_is_one(tmp_path: Path) -> None:
    for name in ("lost+found", ".config", ".nv"):
        (tmp_path / name).mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / "alerts.toml").touch()
    (tmp_path / "keeper").mkdir(mode=0o700)
    (tmp_path / "keeper-0a1b2c3d").mkdir()
    (tmp_path / ".signer.key-0a1b2c3d4e5f6071").touch()
    assert open_state_dir(tmp_path).is_new
