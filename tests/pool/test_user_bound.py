"""The bounds of a user count all tokens; those of a token are lower."""

from gpupool.pool.model.ids import TokenId
from gpupool.pool.user_bound import Holder, UserBound

BOUND = UserBound(user=4, token=3)
ADA, ADAS_OTHER, BOB = (
    Holder(user, TokenId(token)) for user, token in (("ada", "a1"), ("ada", "a2"), ("bob", "b1"))
)


def test_a_bound_is_of_a_user_and_of_each_token() -> None:
    assert BOUND.reached(ADA, [ADA, ADA, BOB, BOB]) == ""
    assert BOUND.reached(ADA, [ADA, ADA, ADA]) == "token a1 of ada has 3"
    assert BOUND.reached(ADAS_OTHER, [ADA, ADA, ADA]) == ""
    assert BOUND.reached(ADAS_OTHER, [ADA, ADA, ADA, ADAS_OTHER]) == "ada has 4"
    assert BOUND.reached(BOB, [ADA, ADA, ADA, ADAS_OTHER]) == ""
