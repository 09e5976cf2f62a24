"""How a policy gets into the table: invalid policies, the size limit, and the history."""

import json
import zlib
from random import Random

import pytest
from tests.pool.policy_kit import Pool, parse, policy_commands

from gpupool.pool.model import commands as c
from gpupool.pool.model.policy import PACKED_SIZE_MAX, POLICY_COUNT_MAX, TEXT_SIZE_MAX
from gpupool.pool.model.results import Result
from gpupool.pool.transitions.policy_versions import (
    Draft,
    UnpackError,
    digest_of,
    pack_draft,
    pack_text,
    unpack_draft,
    unpack_text,
)

TEXT = "[defaults]\nmax_gpus = 2\n"
EITHER = "the document is too large or damaged"


def applied(pool: Pool, data: bytes, base: int = 0) -> Result:
    """Put a possibly invalid policy in force."""
    digest = digest_of(data)
    assert pool.do(c.StagePart(digest[:16], 0, data)).ok
    return pool.do(c.ApplyPolicy(digest[:16], 1, digest, base, "root"))


def refusal(data: bytes) -> str:
    """Return why a document is none."""
    with pytest.raises(UnpackError) as refused:
        unpack_text(data)
    return str(refused.value)


def text_of_packed_size(least: int) -> str:
    """Return a text that is hard to compress, and has a few bytes more than ``least`` packed."""
    random = Random(1)
    size = least
    while True:
        text = random.randbytes(size).hex()
        if len(zlib.compress(text.encode(), 9)) >= least:
            return text
        size += 16


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"nonsense", "not a policy: the document is damaged"),
        (zlib.compress(b"[]"), "not a policy: list indices must be integers or slices, not str"),
        (zlib.compress(b"{}"), "not a policy: 'text'"),
        (zlib.compress(b'{"text":"00","policy":[]}'), "not a policy: not a policy"),
        (zlib.compress(b'{"text":"00","policy":{"version":1}}'), "not a policy: not a policy"),
        (zlib.compress(b'{"text":"00","policy":{"digest":""}}'), "not a policy: not a policy"),
    ],
)
def test_what_is_no_policy_is_refused_and_no_act(data: bytes, why: str) -> None:
    pool = Pool()
    before = pool.state
    result = applied(pool, data)
    assert (result.ok, result.kind, result.why) == (False, "invalid", why)
    assert pool.state.policy == before.policy
    assert (pool.state.acts, pool.state.events) == (before.acts, before.events)
    assert pool.state.staged == {}


def test_a_policy_whose_text_is_damaged_is_refused() -> None:
    data = pack_draft(Draft(zlib.compress(b"\xff"), parse(TEXT)))
    assert applied(Pool(), data).why == "the document is not UTF-8"


def test_a_policy_that_is_proposed_again_is_one_act() -> None:
    pool = Pool()
    *_, last = policy_commands(TEXT, 0)
    pool.put(TEXT)
    assert pool.do(last).ok
    assert pool.state.policy.version == 1
    assert [act.kind for act in pool.state.acts].count("policy-applied") == 1
    assert [event.kind for event in pool.state.events].count("policy-applied") == 1
    act, event = pool.state.acts[-1], pool.state.events[-1]
    assert (act.by, act.subject, act.text) == ("root", "version 1", "")
    assert (event.subject, event.text) == ("lab", "version 1 applied by root")


def test_a_policy_for_a_pool_that_has_none_of_its_base_is_refused() -> None:
    result = applied(Pool(), pack_draft(Draft(pack_text(TEXT), parse(TEXT))), base=1)
    assert (result.kind, result.why) == ("conflict", "somebody has applied version 0 meanwhile")


def test_the_table_keeps_the_latest_documents() -> None:
    pool = Pool()
    for number in range(POLICY_COUNT_MAX + 2):
        pool.put(f"# {number}\n{TEXT}")
    kept = [each.version for each in pool.state.policies]
    assert kept == list(range(3, POLICY_COUNT_MAX + 3))
    assert pool.state.policy.version == kept[-1]


def test_a_document_has_at_most_256_kib() -> None:
    text = "#" * TEXT_SIZE_MAX
    assert unpack_text(pack_text(text)) == text
    for larger in (text + "#", "#" * (TEXT_SIZE_MAX - 1) + "é"):
        with pytest.raises(UnpackError, match="at most 256 KiB, 48 KiB deflated"):
            pack_text(larger)
        assert refusal(zlib.compress(larger.encode())) == EITHER


def test_a_document_has_at_most_48_kib_deflated() -> None:
    text = text_of_packed_size(PACKED_SIZE_MAX + 1)
    with pytest.raises(UnpackError, match="at most 256 KiB, 48 KiB deflated"):
        pack_text(text)
    assert refusal(zlib.compress(text.encode(), 9)) == "the document is too large"
    packed = bytes(PACKED_SIZE_MAX)
    assert refusal(packed) == "the document is damaged"
    assert refusal(packed + b"\0") == "the document is too large"


def test_a_document_that_is_cut_or_goes_on_is_refused() -> None:
    packed = pack_text(TEXT)
    assert unpack_text(packed) == TEXT
    assert refusal(packed[:-1]) == EITHER
    assert refusal(packed + b"\0") == EITHER
    assert refusal(b"") == EITHER
    assert refusal(zlib.compress(b"\xff")) == "the document is not UTF-8"


def test_a_draft_is_read_as_what_was_packed_and_one_that_is_damaged_is_not() -> None:
    draft = Draft(pack_text(TEXT), parse(TEXT))
    data = pack_draft(draft)
    assert unpack_draft(data) == draft
    fields = json.loads(zlib.decompress(data))
    assert fields.keys() == {"text", "policy"}
    for damaged in (data[:-1], data + b"x"):
        with pytest.raises(UnpackError, match=f"^not a policy: {EITHER}$"):
            unpack_draft(damaged)


def test_why_something_is_no_policy_is_cut_at_200_characters() -> None:
    policy = {"\U000e0001" * 40: 1}  # each is written as ten characters
    data = zlib.compress(json.dumps({"text": "00", "policy": policy}).encode())
    with pytest.raises(UnpackError) as refused:
        unpack_draft(data)
    assert len(str(refused.value)) == 200


def test_a_policy_whose_parts_are_missing_is_refused() -> None:
    pool = Pool()
    before = pool.state
    *_, last = policy_commands(TEXT, 0)
    why = "its parts are not there any more; send it again"
    assert pool.do(last) == Result(False, "conflict", why)
    assert pool.state.policy == before.policy
    assert pool.state.acts == before.acts
