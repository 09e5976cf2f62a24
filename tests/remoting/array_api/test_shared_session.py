"""The session that tests share is looked at after each of them, and made anew if need be."""

from typing import Any

from tests.remoting.array_api.conftest import SESSIONS


def test_a_session_that_is_lost_or_has_an_error_is_made_anew(cp: Any) -> None:
    [session] = SESSIONS
    assert session.wrong() == ""
    cp.linalg.pinv(cp.eye(3))  # the first call of its kind waits
    cp.linalg.pinv(cp.nan * cp.eye(3))
    assert session.wrong().startswith("LinAlgError: ")
    assert session.wrong() == ""
    cp._door.pool.current().lose("the network is cut")
    assert "the network is cut" in session.wrong()
    session.close()
    session.open()
    assert session.wrong() == ""
    assert float(cp.ones(3).sum()) == 3
