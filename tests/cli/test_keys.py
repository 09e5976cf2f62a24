"""Keys: bytes become names, names change the state, and the help is the same table."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.tui.keys import (
    INTERVALS_S,
    KEYS,
    SPANS_S,
    Action,
    Extent,
    Mode,
    UiState,
    press,
)
from gpupool.cli.tui.terminal_keys import decode_keys

EXTENT = Extent((3, 4, 2), (5, 6, 7), ("server", "c0ffee"))


def typed(ui: UiState, *keys: str) -> tuple[UiState, Action | None]:
    action = None
    for key in keys:
        ui, action = press(ui, key, EXTENT)
    return ui, action


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOAjk", ["up", "j", "k"]),
        (b"\x1b", ["esc"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F", ["pageup", "pagedown", "home", "end"]),
        (b"\r\x7f\x03", ["enter", "backspace", "ctrl-c"]),
        ("ä".encode(), ["ä"]),
        (b"\x1b[<64;3;4Mj\x1b[<65;3;4M", ["wheelup", "j", "wheeldown"]),
        (b"\x1b[<0;12;7M\x1b[<0;12;7m", ["click:11:6"]),  # pressed; that it is let go is no key
        (b"\x1b[<2;12;7M\x1b[<0;0;7Mq", ["q"]),  # another button; no place
        (b"\x1b[200~q", ["q"]),  # an unknown sequence is no key, and eats nothing behind it
        (b"\x00\x01", []),
        (b"\xff", []),
    ],
)
def test_bytes_to_names(data: bytes, keys: list[str]) -> None:
    assert decode_keys(data) == (keys, b"")


def test_a_split_sequence_waits_for_its_rest() -> None:
    assert decode_keys(b"j\x1b", more=True) == (["j"], b"\x1b")
    assert decode_keys(b"\x1b[", more=True) == ([], b"\x1b[")
    assert decode_keys(b"\x1b[A") == (["up"], b"")
    assert decode_keys("ä".encode()[:1], more=True) == ([], "ä".encode()[:1])


@given(st.binary(max_size=64), st.booleans())
def test_any_bytes_end(data: bytes, more: bool) -> None:
    keys, rest = decode_keys(data, more=more)
    assert len(keys) <= len(data)
    assert rest == b"" or more
    assert len(rest) < 16


def test_quit_keys() -> None:
    assert typed(UiState(), "q")[1] is Action.QUIT
    assert typed(UiState(), "ctrl-c")[1] is Action.QUIT
    assert typed(UiState(mode=Mode.FILTER), "q")[1] is None
    assert typed(UiState(mode=Mode.FILTER), "ctrl-c")[1] is Action.QUIT


def test_the_cursor_stays_on_the_list() -> None:
    assert typed(UiState(), "up")[0].cursor == 0
    assert typed(UiState(), "down", "down", "down", "down")[0].cursor == 2
    assert typed(UiState(), "end", "pageup")[0].cursor == 0
    assert press(UiState(), "end", Extent((0, 0, 0), (1, 1, 1)))[0].cursor == 0


def test_panels_and_back() -> None:
    assert typed(UiState(), "2")[0].panel == "gpus"
    assert typed(UiState(), "right", "right", "right")[0].panel == "leases"
    assert typed(UiState(panel="leases"), "left", "left", "left")[0].panel == "servers"
    assert typed(UiState(), "tab", "tab", "tab")[0].panel == "servers"
    assert typed(UiState(), "3", "esc")[0].panel == "servers"


def test_enter_opens_the_row_and_brackets_step_the_span() -> None:
    ui, _ = typed(UiState(), "enter")
    assert (ui.mode, ui.detail, ui.span_s) == (Mode.DETAIL, ("server", "c0ffee"), 900)
    assert typed(ui, "]", "]", "]")[0].span_s == 86_400
    assert typed(ui, *["]"] * 9)[0].span_s == SPANS_S[-1]
    assert typed(ui, *["]"] * 9, *["["] * 9)[0].span_s == SPANS_S[0]
    assert typed(ui, "]", "esc", "down", "enter")[0].span_s == 3600, "it stays chosen"
    assert typed(ui, "q")[1] is Action.QUIT
    nothing = Extent((0, 0, 0), (1, 1, 1))
    assert press(UiState(), "enter", nothing) == (UiState(), None)


def test_the_tree_is_by_user_and_by_client_in_turn() -> None:
    tree, _ = typed(UiState(), "t", "down")
    assert (tree.mode, tree.tree_by, tree.scroll) == (Mode.TREE, "user", 1)
    by_client, _ = typed(tree, "t")
    assert (by_client.mode, by_client.tree_by, by_client.scroll) == (Mode.TREE, "client", 0)
    assert typed(by_client, "t")[0].tree_by == "user"
    assert typed(by_client, "esc", "t")[0] == by_client, "it stays chosen"
    assert typed(UiState(), "H", "t")[0].mode is Mode.BROWSE


def test_a_click_chooses_and_another_one_opens() -> None:
    ui, _ = typed(UiState(), "row:1:2")
    assert (ui.panel, ui.cursor, ui.mode) == ("gpus", 2, Mode.BROWSE)
    assert typed(ui, "row:1:2")[0].mode is Mode.DETAIL
    assert typed(ui, "row:0:99")[0].selected == (2, 0, 0)
    assert typed(UiState(), "wheeldown")[0].cursor == 2
    assert typed(UiState(mode=Mode.TREE), "wheeldown", "wheeldown", "wheelup")[0].scroll == 3
    assert typed(UiState(mode=Mode.HELP), "row:0:1")[0].mode is Mode.HELP
    assert not typed(UiState(), "m")[0].mouse


def test_choosing_another_server_starts_at_its_first_gpu() -> None:
    ui, _ = typed(UiState(), "2", "down", "1", "down")
    assert ui.selected == (1, 0, 0)


def test_filter_is_typed_kept_and_cleared() -> None:
    ui, _ = typed(UiState(), "/", "a", "d", "x", "backspace", "enter")
    assert (ui.filter, ui.mode) == ("ad", Mode.BROWSE)
    assert typed(ui, "esc")[0].filter == ""
    assert typed(UiState(), "/", "a", "esc")[0] == UiState()


def test_sorting_goes_around() -> None:
    ui, _ = typed(UiState(), "s", "s")
    assert ui.sort == (1, -1, -1)
    assert typed(ui, "s", "s", "s", "s")[0].sort == (-1, -1, -1)
    assert typed(ui, "S")[0].reverse


def test_speed_has_ends() -> None:
    assert typed(UiState(), *["-"] * 9)[0].interval_s == INTERVALS_S[0]
    assert typed(UiState(), *["+"] * 9)[0].interval_s == INTERVALS_S[-1]


def test_drain_needs_a_reason_and_a_confirmation() -> None:
    ui, action = typed(UiState(), "d", "enter")
    assert (action, ui.mode) == (None, Mode.DRAIN)
    assert "reason" in ui.message
    ui, action = typed(ui, "f", "a", "n", "enter")
    assert (action, ui.typed) == (Action.DRAIN, "fan")
    assert typed(UiState(), "d", "x", "esc")[1] is None


def test_undrain_asks() -> None:
    assert typed(UiState(), "u", "n")[1] is None
    assert typed(UiState(), "u", "y")[1] is Action.UNDRAIN


def test_readonly_changes_nothing() -> None:
    for key in ("d", "u"):
        ui, action = typed(UiState(readonly=True), key)
        assert (action, ui.mode) == (None, Mode.BROWSE)
        assert "readonly" in ui.message


def test_long_texts_scroll() -> None:
    ui, _ = typed(UiState(mode=Mode.JSON), "pagedown", "down", "k")
    assert (ui.mode, ui.scroll) == (Mode.JSON, 10)
    ui, action = typed(ui, "x")
    assert (ui.mode, ui.scroll, action) == (Mode.BROWSE, 0, None)


def test_every_key_of_the_table_does_something() -> None:
    start = UiState(selected=(1, 1, 1), filter="x", panel="gpus")
    for line in KEYS:
        for key in line.keys:
            # The keys of charts are those of an open detail.
            before = replace(start, mode=Mode.DETAIL, span_index=1) if key in "[]" else start
            ui, action = press(before, key, Extent((30, 30, 30), (5, 6, 7), ("gpu", "GPU-0")))
            changed = (ui, action) != (before, None)
            assert changed or key == "2", f"{key} does nothing"


@given(
    st.lists(
        st.sampled_from([k for line in KEYS for k in line.keys] + ["x", "backspace", "row:1:9"])
    )
)
def test_no_sequence_of_keys_leaves_the_lists(keys: list[str]) -> None:
    ui, _ = typed(UiState(), *keys)
    for cursor, rows in zip(ui.selected, EXTENT.rows, strict=True):
        assert 0 <= cursor < rows
