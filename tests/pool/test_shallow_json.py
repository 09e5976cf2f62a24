"""Uploads with deep JSON are refused the same everywhere, on any server's stack."""

import json
import re
import zlib
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.pool.model.policy import Policy
from gpupool.pool.transitions.backup import FORMAT, VERSION, BackupError, from_file
from gpupool.pool.transitions.policy_versions import (
    Draft,
    UnpackError,
    pack_draft,
    pack_text,
    unpack_draft,
)
from gpupool.pool.transitions.shallow_json import DEPTH_MAX, STRING, load_shallow


@pytest.mark.parametrize("pair", [b"[]", b"{}"])
def test_depth_is_limited_by_count_not_by_the_stack(pair: bytes) -> None:
    inner = b"" if pair == b"[]" else b'"k":'
    deepest = (pair[:1] + inner) * (DEPTH_MAX - 1) + pair + pair[1:] * (DEPTH_MAX - 1)
    load_shallow(deepest)
    with pytest.raises(ValueError, match="nested"):
        load_shallow(pair[:1] + inner + deepest + pair[1:])


def test_brackets_in_strings_do_not_count() -> None:
    text = '"' + "[{" * 500 + '\\"' + '"'
    assert load_shallow(text.encode()) == "[{" * 500 + '"'


ESCAPES = st.text('\\"[]{}a\n', max_size=40).map(str.encode)


@given(ESCAPES)
def test_strings_end_where_json_has_them_end(data: bytes) -> None:
    """Beside the plain rule, character by character: the text outside of strings is the same."""
    plain = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
    assert STRING.sub(b"", data) == plain.sub(b"", data)


def test_a_policy_whose_text_cannot_be_read_is_refused() -> None:
    good = json.loads(zlib.decompress(pack_draft(Draft(pack_text("# none"), Policy()))))
    assert unpack_draft(zlib.compress(json.dumps(good).encode())).policy == Policy()
    bad = good | {"text": b"no text".hex()}
    with pytest.raises(UnpackError):
        unpack_draft(zlib.compress(json.dumps(bad).encode()))


def test_a_deep_policy_and_a_deep_backup_are_refused() -> None:
    deep = b"[" * 100_000
    with pytest.raises(UnpackError, match="nested"):
        unpack_draft(zlib.compress(deep))
    with pytest.raises(BackupError, match="nested"):
        from_file(f"{FORMAT} {VERSION} {sha256(deep).hexdigest()}\n".encode() + deep)
