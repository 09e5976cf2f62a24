import hashlib
import hmac

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.remoting.protocol import handshake

SESSION = bytes(range(16))
TICKET = bytes(range(100, 132))
CLIENT_NONCE, SERVER_NONCE = b"c" * 16, b"s" * 16


def test_bytes_are_those_of_the_contract() -> None:
    hello = handshake.client_hello(SESSION, CLIENT_NONCE)
    assert hello == b"gpupool\x01" + SESSION + CLIENT_NONCE
    proof = handshake.server_proof(TICKET, CLIENT_NONCE, SERVER_NONCE)
    expected = hmac.new(TICKET, b"server" + CLIENT_NONCE + SERVER_NONCE, hashlib.sha256).digest()
    assert proof == SERVER_NONCE + expected
    expected = hmac.new(TICKET, b"client" + CLIENT_NONCE + SERVER_NONCE, hashlib.sha256).digest()
    assert handshake.client_proof(TICKET, CLIENT_NONCE, SERVER_NONCE) == expected
    assert handshake.ACCEPTED == b"\x01"
    assert handshake.server_name(SESSION) == f"{SESSION.hex()}.session.gpupool"


def test_both_sides_convince_each_other() -> None:
    nonce = handshake.parse_client_hello(handshake.client_hello(SESSION, CLIENT_NONCE), SESSION)
    answer = handshake.server_proof(TICKET, nonce, SERVER_NONCE)
    server_nonce = handshake.check_server_proof(TICKET, CLIENT_NONCE, answer)
    proof = handshake.client_proof(TICKET, CLIENT_NONCE, server_nonce)
    handshake.check_client_proof(TICKET, nonce, SERVER_NONCE, proof)


def test_proofs_cannot_be_reflected() -> None:
    answer = handshake.server_proof(TICKET, CLIENT_NONCE, SERVER_NONCE)
    with pytest.raises(AuthenticationError):
        handshake.check_client_proof(TICKET, CLIENT_NONCE, SERVER_NONCE, answer[16:])


@given(st.binary(max_size=100))
def test_no_other_bytes_prove_the_ticket(data: bytes) -> None:
    with pytest.raises(AuthenticationError):
        handshake.check_client_proof(TICKET, CLIENT_NONCE, SERVER_NONCE, data)
    with pytest.raises(AuthenticationError):
        handshake.check_server_proof(TICKET, CLIENT_NONCE, data)
    with pytest.raises(AuthenticationError):
        handshake.check_ticket(TICKET, data)


@given(st.binary(max_size=60))
def test_malformed_hello_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        handshake.parse_client_hello(data, SESSION)


def test_hello_of_another_session_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="another session"):
        handshake.parse_client_hello(handshake.client_hello(bytes(16), CLIENT_NONCE), SESSION)


@pytest.mark.parametrize("size", range(40))
def test_session_is_found_as_soon_as_it_is_there(size: int) -> None:
    first = handshake.client_hello(SESSION, CLIENT_NONCE)[:size]
    assert handshake.session_of_preamble(first) == (SESSION if size >= 24 else None)


@given(st.binary(min_size=1, max_size=30))
def test_other_first_bytes_are_refused_at_once(data: bytes) -> None:
    if handshake.PREAMBLE.startswith(data[:8]):
        return
    with pytest.raises(RemoteProtocolError):
        handshake.session_of_preamble(data)


def test_certificate_is_compared_by_its_hash() -> None:
    handshake.check_certificate(b"der", hashlib.sha256(b"der").digest())
    for other in (b"other", b"", None):
        with pytest.raises(AuthenticationError):
            handshake.check_certificate(other, hashlib.sha256(b"der").digest())


def test_wrong_sizes_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="session"):
        handshake.client_hello(b"short", CLIENT_NONCE)
    with pytest.raises(ValueError, match="ticket"):
        handshake.client_proof(b"short", CLIENT_NONCE, SERVER_NONCE)
