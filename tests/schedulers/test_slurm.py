"""Jobs of a real Slurm on loopback use a real pool: order by Slurm, leases freed with the job."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import LivePool
from tests.shared import Shared

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "examples" / "slurm" / "train.sbatch"
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
ACCOUNTING_TOOLS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")
SBIN = "/usr/sbin"
DEADLINE_S = 30.0

HOLD = """
import cupy, sys, time
total = float(cupy.arange(1000, dtype=cupy.float64).sum())
assert total == 499500.0, total
print("holding", flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 600)
"""
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
KillWait=20
Licenses=gpupool:2
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=500 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=high Nodes={host} MaxTime=60 State=UP PriorityTier=10
"""
ACCOUNTED = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=license/gpupool
PriorityType=priority/multifactor
PriorityWeightQOS=10000
"""
ACCOUNTING = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={folder}/accounting.pid
LogFile={folder}/accounting.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def lacks(tools: tuple[str, ...]) -> bool:
    return any(shutil.which(tool, path=f"{os.environ['PATH']}:{SBIN}") is None for tool in tools)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        lacks(TOOLS), reason="needs Debian's slurmctld, slurmd, slurm-client and munge"
    ),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Slurm:
    """One controller and one node, with separate keys, ports and folders."""

    def __init__(self, folder: Path, pool: LivePool) -> None:
        self.folder = folder
        self.pool = pool
        self.processes: list[subprocess.Popen[bytes]] = []
        # The job finds gpupool and Python as a user of the cluster would: on the path.
        tools = folder / "bin"
        tools.mkdir()
        launcher = tools / "gpupool"
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpupool.cli.main "$@"\n')
        launcher.chmod(0o755)
        (tools / "python3").symlink_to(sys.executable)
        self.env = pool.env | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{tools}:{os.environ['PATH']}:{SBIN}",
        }
        self.user = subprocess.check_output(["id", "-un"], text=True).strip()

    def start(self, *, accounting: bool = False) -> None:
        for name in ("controller", "spool"):
            (self.folder / name).mkdir()
        configuration = self.folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=self.folder,
                host=socket.gethostname().split(".")[0],
                user=self.user,
                controller=free_port(),
                node=free_port(),
            )
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        names = {"key": key, "socket": "munge.socket", "pid": "munge.pid", "seed": "munge.seed"}
        flags = {"key": "--key-file", "socket": "--socket", "pid": "--pid-file"}
        flags["seed"] = "--seed-file"
        self.spawn(
            *("munged", "--foreground", "--force", f"--log-file={self.folder / 'munge.log'}"),
            *(f"{flag}={self.folder / names[name]}" for name, flag in flags.items()),
        )
        self.until(lambda: (self.folder / "munge.socket").exists())
        if accounting:
            port = self.start_accounting()
            with configuration.open("a") as file:
                file.write(ACCOUNTED.format(folder=self.folder, port=port))
            self.until(lambda: self.account("add", "cluster", "test").returncode == 0)
        self.spawn("slurmctld", "-D")
        self.until(lambda: self.run("sinfo", check=False).returncode == 0)
        self.spawn("slurmd", "-D")
        self.until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t").stdout)

    def start_accounting(self) -> int:
        """Start MariaDB and slurmdbd; return the port of the latter."""
        data, database, port = self.folder / "database", free_port(), free_port()
        common = ["--no-defaults", f"--datadir={data}", f"--user={self.user}"]
        self.run("mariadb-install-db", *common, "--auth-root-authentication-method=normal")
        sock = f"--socket={self.folder / 'database.socket'}"
        listen = ["--bind-address=127.0.0.1", f"--port={database}", "--innodb-buffer-pool-size=64M"]
        self.spawn("mariadbd", *common, sock, *listen)
        client = ["mariadb", "--no-defaults", sock, "--user=root", "--execute"]
        grant = "GRANT ALL ON slurm.* TO slurm@localhost IDENTIFIED BY 'slurm'"
        self.until(lambda: self.run(*client, grant, check=False).returncode == 0)
        path = self.folder / "slurmdbd.conf"
        path.write_text(
            ACCOUNTING.format(folder=self.folder, port=port, user=self.user, database=database)
        )
        path.chmod(0o600)
        self.spawn("slurmdbd", "-D")
        return port

    def account(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("sacctmgr", "--immediate", *words, check=False)

    def spawn(self, *argv: str) -> None:
        with (self.folder / f"{argv[0]}.out").open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    argv, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            )

    def run(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, check=check
        )

    def submit(self, *arguments: str) -> str:
        return self.run("sbatch", "--parsable", *arguments).stdout.strip()

    def state(self, job: str) -> str:
        shown = self.run("scontrol", "-o", "show", "job", job).stdout
        return shown.partition("JobState=")[2].partition(" ")[0]

    def output(self, job: str) -> str:
        path = self.folder / f"train-{job}.out"
        return path.read_text() if path.exists() else ""

    def until(self, condition: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in paths)

    def stop(self) -> None:
        self.run("scancel", "--user", self.env.get("USER", "root"), check=False)
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def started(*, accounting: bool = False) -> Generator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-slurm-"))
    folder.chmod(0o711)
    pool = LivePool(folder)
    pool.servers = {"a": pool.servers["a"]}
    running = Slurm(folder, pool)
    try:
        pool.servers["a"].start("--pool-name", "lab")
        pool.servers["a"].wait_for_log("is listening")
        running.start(accounting=accounting)
        yield running
    finally:
        running.stop()
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_slurm() -> Iterator[Shared[Slurm]]:
    shared = Shared(started, lambda slurm: slurm.pool.wrong())
    yield shared
    shared.end()


@pytest.fixture
def slurm(shared_slurm: Shared[Slurm], request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from shared_slurm.lend(request)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "hold.py"
    path.write_text(HOLD)
    return str(path)


def leases(slurm: Slurm) -> int:
    return len(slurm.pool.view()["leases"])


def test_a_cancelled_job_releases_its_lease(slurm: Slurm, program: str) -> None:
    job = slurm.submit(str(JOB), program)
    slurm.until(lambda: "holding" in slurm.output(job))
    assert leases(slurm) == 1
    slurm.run("scancel", job)
    slurm.until(lambda: slurm.state(job) == "CANCELLED")
    slurm.until(lambda: leases(slurm) == 0, within_s=5)


def test_a_script_that_does_more_than_run_one_program(slurm: Slurm, program: str) -> None:
    script = slurm.folder / "more.sh"
    script.write_text(
        "#!/bin/bash\n"
        f"gpupool run -n 1 -p 0.25 -- python3 {program} 0\n"
        f"gpupool run -n 1 -p 0.25 -- python3 {program}\n"
    )
    job = slurm.submit("--output=train-%j.out", str(script))
    slurm.until(lambda: slurm.output(job).count("holding") == 2)
    slurm.run("scancel", job)
    slurm.until(lambda: slurm.state(job) == "CANCELLED")
    slurm.until(lambda: leases(slurm) == 0, within_s=5)


def test_slurm_decides_who_is_next(slurm: Slurm, program: str) -> None:
    """Three shares, of which Slurm gives two at once; the rest waits there, not in the pool."""
    first = [slurm.submit("--ntasks=1", str(JOB), program) for _ in range(2)]
    slurm.until(lambda: all("holding" in slurm.output(job) for job in first))
    low = slurm.submit("--partition=low", str(JOB), program)
    high = slurm.submit("--partition=high", str(JOB), program)
    slurm.until(lambda: slurm.state(low) == slurm.state(high) == "PENDING")
    slurm.until(lambda: "Licenses" in slurm.run("squeue", "-h", "-j", high, "-o", "%R").stdout)
    assert slurm.pool.view()["waiting"] == []
    slurm.run("scancel", first[0])
    slurm.until(lambda: "holding" in slurm.output(high))
    assert slurm.state(low) == "PENDING"
    slurm.run("scancel", first[1])
    slurm.until(lambda: "holding" in slurm.output(low))
    slurm.run("scancel", low, high)
    slurm.until(lambda: leases(slurm) == 0)


def test_the_time_limit_releases_the_lease(slurm: Slurm, program: str) -> None:
    job = slurm.submit("--time=1", str(JOB), program)
    slurm.until(lambda: "holding" in slurm.output(job))
    assert leases(slurm) == 1
    slurm.until(lambda: "DUE TO TIME LIMIT" in slurm.output(job), within_s=180)
    began = time.monotonic()
    slurm.until(lambda: leases(slurm) == 0, within_s=5)  # long before KillWait's SIGKILL
    print(f"lease freed {time.monotonic() - began:.1f} s after the time limit")
    slurm.until(lambda: slurm.state(job) == "TIMEOUT")


@pytest.mark.skipif(
    lacks(ACCOUNTING_TOOLS), reason="needs Debian's slurmdbd, mariadb-server and mariadb-client"
)
def test_a_quality_of_service_gives_priority_and_limits(program: str) -> None:
    with started(accounting=True) as slurm:
        for words in (
            "add account lab",
            f"add user {slurm.user} account=lab",
            "add qos urgent priority=1000",
            "add qos modest MaxTRESPerUser=license/gpupool=1",
            f"modify user {slurm.user} set qos+=urgent,modest",
        ):
            done = slurm.account(*words.split())
            assert done.returncode == 0, done.stdout + done.stderr
        first = [slurm.submit(str(JOB), program) for _ in range(2)]
        slurm.until(lambda: all("holding" in slurm.output(job) for job in first))
        normal = slurm.submit(str(JOB), program)
        urgent = slurm.submit("--qos=urgent", str(JOB), program)
        slurm.until(lambda: slurm.state(normal) == slurm.state(urgent) == "PENDING")
        assert slurm.pool.view()["waiting"] == []
        slurm.run("scancel", first[0])
        slurm.until(lambda: "holding" in slurm.output(urgent))
        assert slurm.state(normal) == "PENDING"
        assert leases(slurm) == 2
        slurm.run("scancel", first[1], normal, urgent)
        slurm.until(lambda: leases(slurm) == 0)

        modest = [slurm.submit("--qos=modest", str(JOB), program) for _ in range(2)]
        slurm.until(lambda: "holding" in slurm.output(modest[0]))
        reason = ("squeue", "-h", "-j", modest[1], "-o", "%R")
        slurm.until(lambda: "QOS" in slurm.run(*reason).stdout)
        assert leases(slurm) == 1
        slurm.run("scancel", modest[0])
        slurm.until(lambda: "holding" in slurm.output(modest[1]))
