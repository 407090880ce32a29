"""How values are shown to people: tables stay tables, whatever characters are in them."""

from __future__ import annotations

from rich.cells import cell_len

from ganger.formats import table


def test_columns_are_as_wide_as_a_terminal_shows_them() -> None:
    rows = [("画像処理", 1, "x"), ("u\u0308ber", 1000, "y"), ("fit", 20, "z")]
    lines = table(("TYPE", "JOBS", "HOW"), rows, "none").splitlines()
    assert [cell_len(line[: line.rindex(how)]) for line, how in zip(lines[1:], "xyz", strict=True)] == [16, 16, 16]
    assert lines[0] == "TYPE      JOBS  HOW"
    assert lines[3] == "fit         20  z"
    assert table(("TYPE",), [], "none") == "none"
