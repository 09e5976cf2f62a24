"""``gpupool join`` that confines nothing: root stays root, without a helper, and so do workers.

It is what ``confinement.py`` compares with. It has a signer, which neither grants nor data meet.
"""

import logging
import sys
from dataclasses import replace
from typing import Any

from gpupool.cli.main import main
from gpupool.remoting.daemon import separate
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.host import supervisor
from gpupool.remoting.host.worker_helper import HelperSettings


def keep_rights(options: JoinOptions, log: logging.Logger) -> separate.Separated:
    """Start the signer alone."""
    return vars(separate)["_with_signer"](options, None, log)


def confine_nothing(*words: Any, **more: Any) -> HelperSettings:
    """Return a privileged helper's settings without Landlock, separate UIDs and confinement."""
    settings = HelperSettings(*words, **more)
    return replace(settings, landlock=False, own_uids=False, confine=frozenset())


for module, name, stand_in in (
    (separate, "separate", keep_rights),
    (supervisor, "HelperSettings", confine_nothing),
):
    assert hasattr(module, name)
    setattr(module, name, stand_in)

if __name__ == "__main__":
    sys.exit(main())
