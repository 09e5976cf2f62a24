"""``gpupool join`` with readings and errors of its emulated GPUs by a script: FILE OPTION..."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fault_script import ScriptedNvml, parse_script

from gpupool.cli.main import main
from gpupool.remoting.host.inventory import Inventory

COMMAND = (sys.executable, __file__)

if __name__ == "__main__":
    entries = parse_script(Path(sys.argv[1]).read_text(encoding="utf-8"))
    scripted = partial(Inventory.discover, script=partial(ScriptedNvml, entries))
    setattr(Inventory, "discover", scripted)  # noqa: B010
    sys.argv[1:] = ["join", *sys.argv[2:]]
    main()
