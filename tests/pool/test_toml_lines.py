"""The lines of keys, tables and elements in documents of every form that TOML has."""

import tomllib

import pytest

from gpupool.pool.policy.toml_lines import Path, key_lines

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
    "a = []\nb = [ ]\nc = {}\nd = { }\n": {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4},
    "a = [1,\n2 # ]\n,\n[ 'x, ]',\n\"y\"], ]\nb = 1\n": {
        ("a",): 1,
        ("a", 0): 1,
        ("a", 1): 2,
        ("a", 2): 4,
        ("a", 2, 0): 4,
        ("a", 2, 1): 5,
        ("b",): 6,
    },
    "a = { b = 1, c.d = [\n2 ,\n{ e = 3 } ] }\nf = 4\n": {
        ("a",): 1,
        ("a", "b"): 1,
        ("a", "c"): 1,
        ("a", "c", "d"): 1,
        ("a", "c", "d", 0): 2,
        ("a", "c", "d", 1): 3,
        ("a", "c", "d", 1, "e"): 3,
        ("f",): 4,
    },
    "a = '''\n[x]\nb = 1\n'''\nc = \"\"\"\\\"\"\"\\\"\nd = 2\\\\\"\"\"\ne = ''''f'''''\ng = 1\n": {
        ("a",): 1,
        ("c",): 5,
        ("e",): 7,
        ("g",): 8,
    },
    'a = "# ] } , \\" " # b = 1\nc = \'# \\\'\nd = 07:30:00\ne = 2026-01-01 08:00:00\nf = inf': {
        ("a",): 1,
        ("c",): 2,
        ("d",): 3,
        ("e",): 4,
        ("f",): 5,
    },
    "a = [\"\"\"x\ny\"\"\", '''z\n''', 1\n]\nb = { c = \"\", d = '' }\n": {
        ("a",): 1,
        ("a", 0): 1,
        ("a", 1): 2,
        ("a", 2): 3,
        ("b",): 5,
        ("b", "c"): 5,
        ("b", "d"): 5,
    },
}


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_every_key_and_element_has_the_line_on_which_it_begins(text: str) -> None:
    tomllib.loads(text)
    assert key_lines(text) == DOCUMENTS[text]
