"""A sender gives up a silent connection, and never one with a busy other end."""

import socket
import threading

import pytest

from gpupool.remoting.transport.session_stream import PeerLiveness, PlainStream, Sent, wait_writable
from gpupool.remoting.worker.peer_links import Links, Peer, PeerLostError

ASKED, ANSWERED = True, False


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        # (time, whether something is unanswered, when something was heard last)
        ([(5.0, ASKED, 0.0)], False),  # it may have been at rest before
        ([(5.0, ASKED, 0.0), (14.5, ASKED, 0.0)], False),
        ([(5.0, ASKED, 0.0), (15.0, ASKED, 0.0)], True),
        ([(5.0, ASKED, 0.0), (10.0, ASKED, 9.0), (15.0, ASKED, 9.0)], False),
        ([(5.0, ASKED, 0.0), (10.0, ASKED, 9.0), (19.0, ASKED, 9.0)], True),
        # A full connection: the probes are answered, and come less and less often.
        ([(5.0, ASKED, 5.0), (10.0, ANSWERED, 7.0), (60.0, ANSWERED, 7.0)], False),
        ([(5.0, ASKED, 0.0), (10.0, ANSWERED, 9.0), (60.0, ASKED, 9.0)], False),
        ([(60.0, ANSWERED, 9.0), (61.0, ASKED, 9.0), (71.0, ASKED, 9.0)], True),
    ],
)
def test_what_stays_without_an_answer_is_lost(
    looks: list[tuple[float, bool, float]], lost: bool
) -> None:
    silence = PeerLiveness(10.0)
    *before, last = [
        silence.is_lost(Sent(unanswered, now - heard_at), now)
        for now, unanswered, heard_at in looks
    ]
    assert not any(before)
    assert last is lost


@pytest.mark.slow
def test_a_receiver_that_is_busy_is_not_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = PlainStream(socket.create_connection(listener.getsockname()))
        stream.lost_after_s = 0.5
        receiver = listener.accept()[0]
    size = 64 << 20
    sender = threading.Thread(target=stream.send_buffers, args=([bytes(size)],))
    sender.start()
    sender.join(3.0)
    assert sender.is_alive()
    with receiver:
        while size:
            size -= len(receiver.recv(1 << 20))
        sender.join(30)
    assert not sender.is_alive()
    stream.close()


def test_a_connection_with_room_is_not_asked() -> None:
    one, other = socket.socketpair()
    with one, other:
        wait_writable(one, 0.001)


class TimedOut:
    """A link to a machine that has not answered the kernel's keep-alive."""

    ended = False

    def recv_into(self, buffer: memoryview) -> int:
        raise TimeoutError(110, "Connection timed out")

    def send_buffers(self, buffers: object) -> None:
        raise TimeoutError("no answer for 3.5 s")

    def hang_up(self) -> None:
        self.ended = True


def test_a_link_that_times_out_is_lost_and_the_worker_lives() -> None:
    peers = Links(lambda _: socket.socket(), lambda _numbers: None)
    other = Peer("b", "server-b", bytes(16), bytes(32), "off", bytes(32))
    peers.introduce(b"k" * 32, 0, [None, other])
    incoming, outgoing = TimedOut(), TimedOut()
    peers._incoming[1] = incoming  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    peers._outgoing[1] = outgoing  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    with pytest.raises(PeerLostError, match="lost server-b: Connection timed out"):
        peers.begin(1, 1, 8)
    assert incoming.ended
    assert outgoing.ended
    with pytest.raises(PeerLostError, match="no copies with server server-b: Connection timed"):
        peers.send(1, 2, 4, [memoryview(b"data")])


def test_a_sender_that_waits_for_room_is_cut_by_another_thread() -> None:
    """As when its client has heard from the receiver that the two have lost each other."""
    peers = Links(lambda _: socket.socket(), lambda _numbers: None)
    peers.introduce(b"k" * 32, 0, [None, Peer("b", "b", bytes(16), bytes(32), "off", bytes(32))])
    near, far = socket.socketpair()
    stream = PlainStream(near)
    stream.lost_after_s = 60.0
    peers._outgoing[1] = stream  # pyright: ignore[reportPrivateUsage]
    lost: list[PeerLostError] = []

    def send() -> None:
        try:
            peers.send(1, 1, 64 << 20, [memoryview(bytes(64 << 20))])
        except PeerLostError as error:
            lost.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    far.recv(1)  # it sends, and soon finds no room
    peers.cut(1)
    sender.join(30)
    assert lost
    far.close()
    peers.close()
