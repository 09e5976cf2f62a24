"""The random state that the functions of `cupy.random` use, one per device."""

import os
import threading
from typing import Any

from cupy._door import state
from cupy.random._states import RandomState as RandomState

_random_states: dict[int, Any] = {}
_making = threading.Lock()


def get_random_state() -> Any:
    """Return the current device's random state, made at first use."""
    device = state.local.context[0]
    found = _random_states.get(device)
    if found is None or found._gp_session.failure is not None:
        given = os.environ.get("CUPY_SEED")
        made = RandomState(None if given is None else int(given))
        with _making:
            other = _random_states.get(device)
            # Another thread may have been first; one that it seeded must stay.
            if other is found:
                _random_states[device] = made
            found = _random_states[device]
    return found


def set_random_state(rs: Any) -> None:
    """Use another random state on the current device."""
    if not isinstance(rs, RandomState):
        raise TypeError(f"Random state must be an instance of RandomState. Actual: {type(rs)}")
    _random_states[state.local.context[0]] = rs


def reset_states() -> None:
    """Forget all random states, so that new seeds are drawn."""
    global _random_states
    _random_states = {}  # a new one, by which callers recognise the reset


def seed(seed: Any = None) -> None:
    """Start the current device's random state again from a seed."""
    get_random_state().seed(seed)
