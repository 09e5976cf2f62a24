"""Workers, data connections, agents and a server's small files have the bytes of 70ed747."""

import json
from pathlib import Path

import numpy as np
from tests.golden import data_samples as samples
from tests.golden.recorded import check, read

from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.templates import compile_template
from gpupool.remoting.daemon import record_files
from gpupool.remoting.daemon.state_dir import IDENTITY, open_state_dir
from gpupool.remoting.program import agent, held_leases
from gpupool.remoting.protocol import handshake, worker_messages

FILE = "data.txt"


def test_everything_of_the_data_plane_has_its_recorded_bytes() -> None:
    check(FILE, samples.everything())


def test_no_message_of_host_or_worker_is_without_a_sample() -> None:
    recorded = {name for name in read(FILE) if name.endswith(" full")}
    assert len(recorded) == sum(len(end.kinds) for end in worker_messages.WORKER.ends)
    assert len(samples.BUDGET) == worker_messages.LET_GO


def test_recorded_messages_are_read_as_what_was_sent() -> None:
    recorded = read(FILE)
    for name, message in samples.host_samples().items():
        reader = worker_messages.WORKER.reader()
        reader.feed(recorded[name])
        (frame,) = reader.frames()
        assert worker_messages.WORKER.decode(type(message), frame) == message, name
    for number, name in enumerate(samples.BUDGET, start=1):
        (call,) = worker_messages.decode_budget_calls(bytearray(recorded[f"budget {name}"]))
        assert call.operation == number
    assert worker_messages.BUDGET_ANSWER.unpack(recorded["budget answer"]) == (2, 77)


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
        assert body == samples.VALUES
    assert array_wire.decode_body(recorded["array values"]) == samples.VALUES
    assert samples.dropin_codec().decode(recorded["array values"]) == samples.VALUES


def test_recorded_call_is_read_as_what_was_meant() -> None:
    record = read(FILE)["array template"]
    code, length = array_wire.SIZED_RECORD.unpack_from(record)
    assert code == array_wire.TEMPLATE
    body = array_wire.decode_body(record[-length:])
    number, template = compile_template(body, ["none"], [print])
    assert (number, template.name, template.outputs) == (array_wire.FIRST_TEMPLATE, "none", 2)
    assert template.layout.format == "<I2IQQqdddQq2s"
    values = (7, -1, 2.5, 1.0, 2.0, 8, 3, b"\x05\x00")
    objects = {7: "array 7", 8: "array 8"}
    arguments, keywords = template.build((number, 0, 0, 1, *values), objects)
    assert arguments[:5] == ("array 7", -1, 2.5, 1 + 2j, ...)
    assert arguments[5:] == (("array 8", 1), [None, True], slice(3, None, 2))
    assert keywords == {"axis": {"k": "text"}, "dtype": np.dtype("f4"), "value": np.int16(5)}


def test_recorded_lines_of_the_agent_are_read_as_what_was_asked() -> None:
    for name, (_line, request) in samples.AGENT_REQUESTS.items():
        assert agent.parse_request(read(FILE)[f"agent asked: {name}"]) == request
    asked = {type(request) for _line, request in samples.AGENT_REQUESTS.values()}
    assert asked == set(agent.REQUESTS.values())


def test_recorded_files_of_a_server_are_read(tmp_path: Path) -> None:
    recorded = read(FILE)
    (tmp_path / record_files.AUDIT_FILE).write_bytes(recorded["audit"])
    assert record_files.read_acts(tmp_path) == list(samples.ACTS)
    for name in json.loads(recorded["files of a new server"]):
        (tmp_path / name).write_bytes(recorded[f"file {name}"])
    state = open_state_dir(tmp_path)
    assert state.identity == samples.IDENTITY_SAMPLE
    assert not state.is_new
    assert state.next_incarnation() == 2
    state.close()
    assert f"file {IDENTITY}" in recorded
    assert held_leases.parse_record(recorded["file of a holder"].decode()) == samples.HOLDER
