"""How many examples Hypothesis tries: a quarter in the default run, all of them with ``thorough``.

``make test`` runs at each change, and thousands of examples take minutes of it. CI, by THOROUGH=1,
and the measurement of coverage have the profile ``thorough``. ``make quick`` tries three.
"""

from hypothesis import settings
from hypothesis import strategies as st

QUICK = "quick"
DEFAULT = "gpupool"
THOROUGH = "thorough"

EXAMPLES = 100
"""Of a test that says no other count."""

FEWEST = 10
FEWEST_QUICK = 3


def register() -> None:
    """Register the profiles and load the default; ``--hypothesis-profile`` loads another later."""
    for name in (QUICK, DEFAULT, THOROUGH):
        # A shared machine can stop for longer than any deadline that would mean something.
        settings.register_profile(name, deadline=None, max_examples=_part(EXAMPLES, name))
    settings.load_profile(DEFAULT)


def examples(count: int) -> int:
    """Return how many of a test's examples this run tries; test modules ask when imported."""
    return _part(count, settings.get_current_profile_name())


def _part(count: int, profile: str) -> int:
    fewest = {QUICK: FEWEST_QUICK, DEFAULT: max(FEWEST, count // 4)}
    return min(count, fewest.get(profile, count))


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
