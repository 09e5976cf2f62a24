"""Parts of a program that stand alone: one that fails says so, and the others go on."""

import traceback
from collections.abc import Callable


def section(run: Callable[[], object]) -> Callable[[], object]:
    """Run a function at once, and print its return value or its exception as the result."""
    name = run.__name__
    try:
        found = run()
    except Exception as error:  # noqa: BLE001 - whatever a library raises natively and here
        traceback.print_exc()
        found = f"failed {type(error).__name__}"
    words = found if isinstance(found, (list, tuple)) else [found]
    print("RESULT", name, *words, flush=True)
    return run
