"""``import gpupool`` in a program: leases, the pool's status, and cells of a notebook."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import trio

import gpupool
from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import Placement
from gpupool.remoting.local.logins import find_login, named_login, use_login
from gpupool.remoting.program import notebook_magics
from gpupool.remoting.program.python_lease import (
    LeaseOptions,
    PoolLeaseOptions,
    RequestOptions,
    wanted_of,
)

SHOW = "import cupy as cp; print(cp.cuda.runtime.getDeviceCount(), float(cp.ones(8).sum()))"


@pytest.fixture
def api(live_pool: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in live_pool.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return live_pool


def no_lease(pool: dict[str, Any]) -> bool:
    return pool["leases"] == []


def test_arguments_mean_what_the_options_mean() -> None:
    wanted = wanted_of(2, fraction=0.5, wait="10m", servers=["a"], placement="spread")
    assert (wanted.count, wanted.fraction, wanted.wait_s) == (2, 0.5, 600.0)
    assert (wanted.servers, wanted.placement) == (("a",), Placement.SPREAD)
    wanted = wanted_of(memory="20GiB", filters=["gpu.memory >= 40GiB"], idle_timeout=90, wait=0)
    assert (wanted.memory, wanted.fraction, wanted.wait_s) == (20 << 30, 0.0, 0)
    assert (len(wanted.filters), wanted.idle_timeout_s) == (1, 90)
    for wrong in (
        {"fraction": 0.5, "memory": "8G"},
        {"n": 0},
        {"fraction": 2.0},
        {"share": 1e-9},
        {"wait": "soon"},
        {"placement": "anywhere"},
        {"filters": ["gpu.memry >= 4G"]},
    ):
        with pytest.raises(UsageError):
            wanted_of(**wrong)  # pyright: ignore[reportArgumentType]


def test_each_option_has_a_type() -> None:
    parameters = dict(inspect.signature(wanted_of).parameters)
    assert parameters.pop("n").annotation is int
    del parameters["unknown"]  # which are refused
    assert get_type_hints(RequestOptions) == {
        name: each.annotation for name, each in parameters.items()
    }
    for function, options in (
        (gpupool.lease, RequestOptions),
        (gpupool.open_lease, LeaseOptions),
        (gpupool.Pool.lease, PoolLeaseOptions),
    ):
        [last] = [
            each.annotation
            for each in inspect.signature(function).parameters.values()
            if each.kind is inspect.Parameter.VAR_KEYWORD
        ]
        assert get_args(last) == (options,), function
    with pytest.raises(TypeError, match="fractoin"):
        gpupool.lease(fractoin=0.5).__enter__()  # pyright: ignore[reportCallIssue, reportUnknownMemberType]


def test_a_lease_is_taken_by_the_login_in_use(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPOOL_CREDENTIALS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = named_login("lab")
    path.parent.mkdir(parents=True)
    shutil.copy(api.env["GPUPOOL_CREDENTIALS"], path)  # and its mode
    use_login(find_login("lab"))
    with gpupool.lease(fraction=0.25) as lease:
        assert ["--credentials", str(path)] == lease.command(["x"])[-5:-3]
    api.wait_until(no_lease)


def test_a_lease_lasts_as_long_as_its_block(api: Any) -> None:
    with gpupool.lease(n=2, fraction=0.5, wait="10m") as lease:
        done = lease.run([sys.executable, "-c", SHOW], capture_output=True, text=True)
        assert done.stdout == "2 8.0\n"
        [held] = gpupool.Pool().status().leases
        assert (held.name, held.program) == (lease.name, "python")
        assert lease.name in str(lease)
        assert len(lease.servers) == 1
        with pytest.raises(subprocess.CalledProcessError):
            lease.run([sys.executable, "-c", "raise SystemExit(3)"])
        with pytest.raises(gpupool.GpupoolError, match="no server could ever give 99 GPUs"):
            gpupool.Pool().lease(99).__enter__()
    assert gpupool.Pool().status().leases == () or api.wait_until(no_lease)


@pytest.mark.slow
async def test_a_lease_under_trio(api: Any) -> None:
    async with gpupool.open_lease(fraction=0.25) as lease:
        done = await lease.run_async([sys.executable, "-c", SHOW], capture_stdout=True)
        assert done.stdout == b"1 8.0\n"
        [held] = (await gpupool.Pool().status_async()).leases
        assert held.name == lease.name
    await trio.to_thread.run_sync(api.wait_until, no_lease)


def test_a_cell_is_a_program_on_gpus(api: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {}

    class Shell:
        def register_magic_function(self, function: Any, kind: str, name: str) -> None:
            found[f"{kind} {name}"] = function

    gpupool.load_ipython_extension(Shell())
    assert found == {"cell gpu": notebook_magics.gpu}
    notebook_magics.gpu("-p 0.5", f"{SHOW}\nraise SystemExit(4)\n")
    said = capsys.readouterr().out
    assert "1 8.0\n" in said
    assert "the cell's program ended with 4" in said
    notebook_magics.gpu("-p '0.5", "print(1)")
    assert capsys.readouterr().out == 'gpupool: "-p \'0.5" cannot be read: no closing quotation\n'


def test_the_package_offers_what_it_says(tmp_path: Path) -> None:
    assert callable(gpupool.lease)
    with pytest.raises(AttributeError):
        _ = gpupool.leese  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def test_a_python_shell_completes_the_names() -> None:
    assert {"lease", "open_lease", "Lease", "Pool", "GpupoolError"} <= set(dir(gpupool))
    assert set(gpupool.__all__) == set(gpupool._PLACES)  # pyright: ignore[reportPrivateUsage]
    for name in gpupool.__all__:
        assert getattr(gpupool, name).__doc__


def test_one_name_is_not_a_list_of_letters() -> None:
    wanted = wanted_of(servers="local-a", filters="gpu.memory>4G")
    assert wanted.servers == ("local-a",)
    assert len(wanted.filters) == 1


def test_an_unknown_argument_is_named_as_of_lease() -> None:
    with pytest.raises(TypeError, match=r"lease\(\) has no argument 'gpus'; .* is n"):
        wanted_of(gpus=2)
