"""Kernels that one session compiled are there in the user's next one, and in nobody else's."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from host_kit import HostKit, MakeHost

from gpupool.remoting.host import kernel_cache
from gpupool.remoting.host.kernel_cache import IMAGES, KernelCache, Limits


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    def fail(line: str) -> None:
        raise AssertionError(line)

    return KernelCache(tmp_path / "state" / "kernels", fail)


def left_by_worker(tmp_path: Path, number: int, files: dict[str, bytes]) -> Path:
    directory = tmp_path / f"worker{number}" / "cupy"
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def given(cache: KernelCache, user: str, tmp_path: Path, uid: int = -1) -> dict[str, bytes]:
    target = tmp_path / f"given{len(list(tmp_path.iterdir()))}"
    cache.give(user, target, uid)
    return {path.name: path.read_bytes() for path in target.iterdir()} if target.exists() else {}


@pytest.mark.parametrize("uid", [-1, os.getuid()])
def test_a_user_gets_what_it_compiled_and_nobody_else(
    cache: KernelCache, tmp_path: Path, uid: int
) -> None:
    cache.take("ada", left_by_worker(tmp_path, 1, {"a.cubin": b"one"}), uid)
    cache.take("bob", left_by_worker(tmp_path, 2, {"a.cubin": b"two", "b.cubin": b"b"}), uid)
    assert given(cache, "ada", tmp_path, uid) == {"a.cubin": b"one"}
    assert given(cache, "bob", tmp_path, uid) == {"a.cubin": b"two", "b.cubin": b"b"}
    assert given(cache, "eve", tmp_path, uid) == {}
    assert (tmp_path / "state" / "kernels").stat().st_mode & 0o777 == 0o700


def test_what_is_there_already_is_not_replaced(cache: KernelCache, tmp_path: Path) -> None:
    cache.take("ada", left_by_worker(tmp_path, 1, {"a.cubin": b"one"}), -1)
    cache.take("ada", left_by_worker(tmp_path, 2, {"a.cubin": b"two"}), -1)
    assert given(cache, "ada", tmp_path) == {"a.cubin": b"one"}


def test_a_copy_of_a_worker_is_its_own(cache: KernelCache, tmp_path: Path) -> None:
    cache.take("ada", left_by_worker(tmp_path, 1, {"a.cubin": b"one"}), -1)
    target = tmp_path / "worker2"
    cache.give("ada", target, -1)
    (target / "a.cubin").write_bytes(b"changed")
    assert given(cache, "ada", tmp_path) == {"a.cubin": b"one"}


def tricks(directory: Path) -> dict[str, Callable[[], object]]:
    secret = directory.parent / "secret"
    secret.write_bytes(b"secret")
    return {
        "link": lambda: (directory / "link").symlink_to(secret),
        "hard": lambda: (directory / "hard").hardlink_to(secret),
        "pipe": lambda: os.mkfifo(directory / "pipe"),
        "folder": lambda: (directory / "folder").mkdir(),
        "empty": lambda: (directory / "empty").touch(),
        "large": lambda: (directory / "large").write_bytes(bytes(kernel_cache.FILE_SIZE_MAX + 1)),
        "tmp1234": lambda: (directory / "tmp1234").write_bytes(b"unfinished"),
        ".hidden": lambda: (directory / ".hidden").write_bytes(b"x"),
        "bad name": lambda: (directory / "bad name").write_bytes(b"x"),
    }


def test_only_plain_files_of_the_worker_are_taken(cache: KernelCache, tmp_path: Path) -> None:
    directory = left_by_worker(tmp_path, 1, {"good.cubin": b"good"})
    for trick in tricks(directory).values():
        trick()
    cache.take("ada", directory, -1)
    assert given(cache, "ada", tmp_path) == {"good.cubin": b"good"}


def test_a_file_of_another_uid_is_not_taken(cache: KernelCache, tmp_path: Path) -> None:
    cache.take("ada", left_by_worker(tmp_path, 1, {"a": b"x"}), os.getuid() + 1)
    assert given(cache, "ada", tmp_path) == {}


def test_a_cache_that_is_a_link_is_not_followed(cache: KernelCache, tmp_path: Path) -> None:
    secret = left_by_worker(tmp_path, 1, {"key": b"secret"})
    link = tmp_path / "worker2"
    link.symlink_to(secret)
    cache.take("ada", link, -1)
    cache.take("ada", tmp_path / "missing", -1)
    assert given(cache, "ada", tmp_path) == {}


def test_the_oldest_go_when_there_is_no_room(
    tmp_path: Path,
) -> None:
    own = tmp_path / "state" / "kernels"
    cache = KernelCache(own, pytest.fail, Limits(user_size=25, user_count=2))
    for number in range(4):
        files = {f"k{number}": bytes([65 + number]) * 10}
        cache.take("ada", left_by_worker(tmp_path, number, files), -1)
        for age, path in enumerate(sorted(next(own.iterdir()).iterdir())):
            os.utime(path, (1000 + age, 1000 + age))
    assert sorted(given(cache, "ada", tmp_path)) == ["k2", "k3"]
    for number, user in enumerate(("bob", "eve")):
        cache.take(user, left_by_worker(tmp_path, 10 + number, {"k": b"k"}), -1)
        for path in own.iterdir():
            os.utime(path, (path.stat().st_mtime - 10, path.stat().st_mtime - 10))
    assert [given(cache, user, tmp_path) != {} for user in ("ada", "bob", "eve")].count(True) == 2
    assert given(cache, "eve", tmp_path)


# --- through a host -------------------------------------------------------------------------------


async def session(kit: HostKit, number: int, user: str, write: bytes = b"") -> bytes:
    """Open a session of ``user``; return the kernels it found, and whether it could write."""
    lease = replace(kit.lease(number), user=user)
    client, worker = await kit.connect(lease)
    found = await client.ask(b"m")
    if write:
        assert await client.ask(b"w", write) == b"written"
    client.stream.close()
    await worker.ended.wait()
    await kit.host.kill_lease(lease.id, "done")
    return found


@pytest.mark.long
async def test_the_next_session_of_a_user_finds_its_kernels(make_host: MakeHost) -> None:
    kit = await make_host()
    assert await session(kit, 1, "ada", b"a.cubin\0compiled") == b""
    assert await session(kit, 2, "bob", b"b.cubin\0compiled") == b""
    assert await session(kit, 3, "ada") == b"a.cubin"
    assert await session(kit, 4, "bob") == b"b.cubin"


async def test_a_worker_cannot_change_what_others_of_its_user_load(make_host: MakeHost) -> None:
    kit = await make_host()
    await session(kit, 1, "ada", b"a.cubin\0compiled")
    lease = replace(kit.lease(2), user="ada")
    client, worker = await kit.connect(lease)
    answer = await client.ask(b"w", b"a.cubin\0poison")
    assert answer == (b"PermissionError" if "own-uid" in worker.confinement else b"written")
    client.stream.close()
    await worker.ended.wait()
    (kept,) = (kit.directory / "kernels").glob("*/a.cubin")
    assert kept.read_bytes() == b"compiled"


@pytest.mark.long
async def test_workers_that_nothing_confines_share_no_kernels(make_host: MakeHost) -> None:
    kit = await make_host(landlock=False, own_uids=False)
    await session(kit, 1, "ada", b"a.cubin\0compiled")
    assert await session(kit, 2, "ada") == b""
    assert not (kit.directory / "kernels").exists()


def test_an_image_is_what_its_name_says(tmp_path: Path) -> None:
    """A worker may leave any file under any name; only bytes with that hash are kept."""
    cache = KernelCache(tmp_path / "state" / "images", pytest.fail, IMAGES)
    good, lie = hashlib.sha256(b"image").hexdigest(), hashlib.sha256(b"other").hexdigest()
    left = left_by_worker(tmp_path, 1, {good: b"image", lie: b"evil", "plain": b"x"})
    cache.take("ada", left, -1)
    assert given(cache, "ada", tmp_path) == {good: b"image"}
    assert given(cache, "bob", tmp_path) == {}


def test_what_is_copied_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "COPIED_SIZE_MAX", 25)
    cache = KernelCache(tmp_path / "state" / "kernels", pytest.fail)
    cache.take("ada", left_by_worker(tmp_path, 1, {f"k{n}": b"0123456789" for n in range(4)}), -1)
    assert len(given(cache, "ada", tmp_path)) == 2
    assert len(given(cache, "ada", tmp_path, os.getuid())) == 4  # links cost nothing
