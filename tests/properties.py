"""How many examples Hypothesis tries: a quarter in the default run, all of them with ``thorough``.

``make test`` runs at each change, and thousands of examples take minutes of it. ``make long-tests``
and the measurement of coverage have the profile ``thorough``, and so has CI.
"""

from hypothesis import settings
from hypothesis import strategies as st

DEFAULT = "gpupool"
THOROUGH = "thorough"

EXAMPLES = 100
"""Of a test that says no other count."""

FEWEST = 10


def register() -> None:
    """Register both profiles and load the default; ``--hypothesis-profile`` loads another later."""
    # A shared machine can stop for longer than any deadline that would mean something.
    settings.register_profile(THOROUGH, deadline=None, max_examples=EXAMPLES)
    settings.register_profile(DEFAULT, deadline=None, max_examples=_part(EXAMPLES))
    settings.load_profile(DEFAULT)


def examples(count: int) -> int:
    """Return how many of a test's examples this run tries; test modules ask when imported."""
    return _part(count) if settings.get_current_profile_name() == DEFAULT else count


def _part(count: int) -> int:
    return min(count, max(FEWEST, count // 4))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)
"""All that CBOR may carry here."""
