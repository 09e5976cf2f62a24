"""``gpupool join`` with nothing that looks: no exporter, samples, checks, slow readings or HTTPS.

It is what ``seeing.py`` compares with.
"""

import sys

import trio

from gpupool.cli.main import main
from gpupool.remoting.daemon import compose


async def nothing(*_: object, **_more: object) -> None:
    """Do nothing instead."""
    await trio.sleep_forever()


for owner, name in (
    (compose.ExporterLink, "run"),
    (compose.ExporterLink, "send_samples"),
    (compose.HealthRounds, "run"),
    (vars(compose)["_Server"], "_measure"),
):
    assert hasattr(owner, name)
    setattr(owner, name, nothing)

if __name__ == "__main__":
    sys.argv.append("--no-web")
    sys.exit(main())
