"""``gpupool backup`` and ``gpupool restore``: the decisions of people about the pool, in a file."""

import sys
from pathlib import Path

import click

from gpupool.cli.lib.options import pool_options
from gpupool.cli.lib.output import run_async
from gpupool.pool.errors import UsageError
from gpupool.remoting.local.files import state_dir
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

FILE_SIZE_MAX = 64 << 20


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--history",
    type=click.Path(file_okay=False),
    help="Copy the accounts and the history of the server here to this folder.",
)
@click.option("--state-dir", "folder", type=click.Path(file_okay=False), help="Of the server here.")
@pool_options
def backup(
    credentials: str | None, file: str | None, history: str | None, folder: str | None
) -> None:
    """Write policy, tokens, labels, history and audit of the pool to FILE.

    Of tokens the pool has hashes only, and so has the backup. The key of the cluster CA is not in
    it: copy ca.pem, ca.key and signer.key from a server's state directory to a safe place, once.
    An existing FILE is replaced once the new one is complete; "-" is standard output. Operators
    only.

    With --history, usage.db and history.db of the server on this machine are copied, while it runs
    on; no pool is asked. The accounts of one server suffice, its history is its own. "gpupool usage
    --file" reads a copy of usage.db.
    """
    if (file is None) == (history is None):
        raise UsageError("a backup needs FILE or --history DIR", hint="give one of them")
    if history is not None:
        _copy_history(Path(folder) if folder else state_dir(), Path(history))
        return
    assert file is not None
    from gpupool.remoting.local.files import write_private

    async def ask() -> bytes:
        async with connected(credentials) as pool:
            return await pool.backup()

    data = run_async(ask)
    if file == "-":
        sys.stdout.buffer.write(data)
        return
    write_private(Path(file), data)
    say(f"gpupool: {len(data) / 1024:.0f} KiB written to {file}")


def _copy_history(folder: Path, to: Path) -> None:
    """Copy the databases of a server by SQLite's online backup, each whole or not at all."""
    from gpupool.monitoring.database_copy import copy_databases

    for path in copy_databases(folder / "monitoring", to):
        say(f"gpupool: {path.stat().st_size / 1024:.0f} KiB written to {path}")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, exists=True))
@pool_options
def restore(credentials: str | None, file: str) -> None:
    """Restore FILE, a backup by "gpupool backup", into this pool.

    The pool must have no policy yet and no leases: leases are never restored. Its own tokens stay
    as they are. Tokens of the former pool hold again only if this pool was made with the former
    CA (gpupool join --ca). Labels of servers that have not joined yet wait for them. All of it is
    restored, or nothing. Operators only.
    """
    from gpupool.pool.transitions.backup import BackupError, from_file

    try:
        with Path(file).open("rb") as opened:
            data = opened.read(FILE_SIZE_MAX + 1)
        from_file(data)
    except OSError as error:
        raise UsageError(f"cannot read {file}", why=(error.strerror or str(error))) from error
    except BackupError as error:
        raise UsageError(f"{file} cannot be restored", why=str(error)) from error

    async def ask() -> str:
        async with connected(credentials) as pool:
            return await pool.restore(data)

    say(f"gpupool: restored {run_async(ask)}")
