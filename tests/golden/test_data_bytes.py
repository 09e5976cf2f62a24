"""Workers, data connections, agents and a server's small files have the bytes of 70ed747."""

import json
from pathlib import Path

from tests.golden import data_samples as samples
from tests.golden.recorded import check, read

from gpupool.cli import agent, auditlog, held
from gpupool.cli.statedir import IDENTITY, open_state_dir
from gpupool.remoting.arrays import wire as array_wire
from gpupool.remoting.host import handshake, messages

FILE = "data.txt"


def test_everything_of_the_data_plane_has_its_recorded_bytes() -> None:
    check(FILE, samples.everything())


def test_no_message_of_host_or_worker_is_without_a_sample() -> None:
    assert set(samples.HOST) == set(messages.HostMessage.__args__)
    assert set(samples.WORKER) == set(messages.WorkerMessage.__args__)
    recorded = {name for name in read(FILE) if name.endswith(" full")}
    assert len(recorded) == len(samples.HOST) + len(samples.WORKER)
    assert len(samples.BUDGET) == messages.LET_GO


def test_recorded_messages_are_read_as_what_was_sent() -> None:
    recorded = read(FILE)
    for name, message in samples.host_samples().items():
        reader = messages.frame_reader()
        reader.feed(recorded[name])
        (frame,) = reader.frames()
        by_host = name.startswith("host")
        decoder = messages.decode_from_host if by_host else messages.decode_from_worker
        assert decoder(frame) == message, name
    for number, name in enumerate(samples.BUDGET, start=1):
        (call,) = messages.decode_budget_calls(bytearray(recorded[f"budget {name}"]))
        assert call.operation == number
    assert messages.BUDGET_ANSWER.unpack(recorded["budget answer"]) == (2, 77)


def test_recorded_handshake_is_accepted_by_both_ends() -> None:
    steps = [read(FILE)[f"handshake {number}"] for number in (1, 2, 3)]
    nonce = handshake.parse_client_hello(steps[0], samples.SESSION)
    assert nonce == samples.CLIENT_NONCE
    found = handshake.check_server_proof(samples.TICKET, nonce, steps[1])
    assert found == samples.SERVER_NONCE
    handshake.check_client_proof(samples.TICKET, nonce, found, steps[2])


def test_recorded_array_frames_are_read_as_what_was_sent() -> None:
    recorded = read(FILE)
    for kind in array_wire.Kind:
        frame = recorded[f"array frame {int(kind)}"]
        length, number, _, _, request, _, bulk = array_wire.HEADER.unpack_from(frame)
        assert (number, request, bulk) == (kind, 9, 1 << 33)
        body = array_wire.decode_body(frame[-length:])
        assert body == {"value": [None, True, -1, 2.5, "text", b"bytes", [1], {"a": 1}]}


def test_recorded_lines_of_the_agent_are_read_as_what_was_asked() -> None:
    for name, (_line, request) in samples.AGENT_REQUESTS.items():
        assert agent.parse_request(read(FILE)[f"agent asked: {name}"]) == request
    asked = {type(request) for _line, request in samples.AGENT_REQUESTS.values()}
    assert asked == set(agent.AgentRequest.__args__)


def test_recorded_files_of_a_server_are_read(tmp_path: Path) -> None:
    recorded = read(FILE)
    (tmp_path / auditlog.NAME).write_bytes(recorded["audit"])
    assert auditlog.read_acts(tmp_path) == list(samples.ACTS)
    for name in json.loads(recorded["files of a new server"]):
        (tmp_path / name).write_bytes(recorded[f"file {name}"])
    state = open_state_dir(tmp_path)
    assert state.identity == samples.IDENTITY_SAMPLE
    assert not state.is_new
    assert state.next_incarnation() == 2
    state.close()
    assert f"file {IDENTITY}" in recorded
    assert held.parse_record(recorded["file of a holder"].decode()) == samples.HOLDER
