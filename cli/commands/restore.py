"""``gpupool restore``: a backup, into a pool that was made just now."""

from pathlib import Path

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say
from gpupool.pool.errors import UsageError

FILE_SIZE_MAX = 64 << 20


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, exists=True))
@pool_options
def command(credentials: str | None, file: str) -> None:
    """Restore what is in FILE, made by "gpupool backup", into this pool.

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

    async def restore() -> str:
        async with connected(credentials) as pool:
            return await pool.restore(data)

    say(f"gpupool: restored {run_async(restore)}")
