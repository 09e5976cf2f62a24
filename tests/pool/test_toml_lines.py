"""The lines of keys and tables in documents."""

import tomllib

import pytest

from gpupool.pool.policy.policy_document import Path, key_lines

DOCUMENTS: dict[str, dict[Path, int]] = {
    "": {},
    "# a = 1\n\n  # b": {},
    "a = 1": {("a",): 1},
    "\n# c\n\ta = 1 # d = 2\nb = 2\n": {("a",): 3, ("b",): 4},
    "a = 1\r\n\r\nb = 2\r\n": {("a",): 1, ("b",): 3},
    "a.b . c = 1\na.d = 2\n": {
        ("a",): 1,
        ("a", "b"): 1,
        ("a", "b", "c"): 1,
        ("a", "d"): 2,
    },
    "'a.b' = 1\n\"c\\\"d\" = 2\n'' . x = 3\n": {
        ("a.b",): 1,
        ('c"d',): 2,
        ("",): 3,
        ("", "x"): 3,
    },
    "[t]\na = 1\n[ u . v ]\na = 2\n[w]\n": {
        ("t",): 1,
        ("t", "a"): 2,
        ("u",): 3,
        ("u", "v"): 3,
        ("u", "v", "a"): 4,
        ("w",): 5,
    },
    "[t.u]\n[t]\na = 1\n": {("t",): 1, ("t", "u"): 1, ("t", "a"): 3},
    "[[t]]\na = 1\n[t.u]\nb = 2\n\n[[t]]\n[[ t . v ]]\nc = 3\n[[t.v]]\nd = 4\n[t.v.w]\n": {
        ("t",): 1,
        ("t", 0): 1,
        ("t", 0, "a"): 2,
        ("t", 0, "u"): 3,
        ("t", 0, "u", "b"): 4,
        ("t", 1): 6,
        ("t", 1, "v"): 7,
        ("t", 1, "v", 0): 7,
        ("t", 1, "v", 0, "c"): 8,
        ("t", 1, "v", 1): 9,
        ("t", 1, "v", 1, "d"): 10,
        ("t", 1, "v", 1, "w"): 11,
    },
    "a = []\nb = [\n1,\n'x'\n] # c = 1\nd = { e = 1 }\n": {("a",): 1, ("b",): 2, ("d",): 6},
    'a = "# ] } , \\" " # b = 1\nc = \'# \\\'\nd = 07:30:00\nf = inf': {
        ("a",): 1,
        ("c",): 2,
        ("d",): 3,
        ("f",): 4,
    },
}


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_every_key_that_begins_a_line_has_that_line(text: str) -> None:
    tomllib.loads(text)
    assert key_lines(text) == DOCUMENTS[text]
