"""Tables of logged text: as wide as there is room, with ids whole and URIs unbroken."""

import io

import pytest

from pipelines.terminal.plain_console import PlainConsole
from pipelines.terminal.tables import MOST_CHARACTERS, fitted, print_table, shortened, text_table

SHA = "9f" * 32
UUID = "0b1c2d3e-aaaa-bbbb-cccc-123456789abc"
URI = "s3://bucket/logs/dt=2026-06-01/hour=02/part-0000-with-a-long-name-that-goes-on-and-on.jsonl.gz"
SPACED = "/data/my logs of 2026/part one.jsonl"
PROSE = "the quick brown fox jumps over the lazy dog and goes home, " * 2


def printed(columns, rows, width=None, terminal=None):
    out = io.StringIO()
    console = PlainConsole(file=out, width=terminal or 80, force_terminal=terminal is not None, color_system=None)
    print_table(text_table(columns, rows), console, width)
    assert console.width == (terminal or 80)
    return out.getvalue()


def test_a_file_gets_a_table_as_wide_as_its_content():
    said = printed(["id", "uri", "text"], [[SHA, URI, PROSE.strip()]])
    assert all(value in said for value in (SHA, URI, PROSE.strip()))
    assert len({len(line) for line in said.splitlines()}) == 1


@pytest.mark.parametrize("terminal", [80, 120])
def test_a_row_that_does_not_fit_is_printed_with_one_field_a_line(terminal):
    columns = ["workload", "release", "made", "decision", "aliases", "gates", "remarks", "digest", "more", "empty"]
    rows = [["code-assistant", "3d0a71d968ac", "2026-11-26", "withdrawn", "champion", PROSE, "signed", SHA, "x" * 30, ""]]
    said = printed(columns, rows, terminal=terminal)
    lines = said.splitlines()
    assert lines[0] == "row 1" and "decision  withdrawn" in said and f"digest    {SHA}" in said and "empty" not in said
    assert max(map(len, lines)) <= terminal and len([line for line in lines if line.startswith("gates")]) == 1


def test_one_field_a_line_can_be_asked_for_and_is_not_chosen_where_rows_fit():
    assert printed(["a", "b"], [["1", "2"]], terminal=80).startswith("┏")
    out = io.StringIO()
    print_table(text_table(["a", "b"], [["1", "2"]]), PlainConsole(file=out, width=80, color_system=None), None, True)
    assert out.getvalue() == "row 1\na  1\nb  2\n"


@pytest.mark.parametrize("terminal", [20, 80, 200])
def test_on_a_terminal_text_is_folded_and_ids_and_places_are_not(terminal):
    said = printed(["id", "trace", "uri", "path", "text"], [[SHA, UUID, URI, SPACED, PROSE]], terminal=terminal)
    assert all(value in said for value in (SHA, UUID, URI, SPACED))
    assert "brown" in said


def test_what_follows_a_place_is_folded():
    said = printed(["text"], [[f"/logs/part-0000.jsonl.gz:1  {PROSE}"]], terminal=60)
    assert max(map(len, said.splitlines())) <= 60 and "/logs/part-0000.jsonl.gz:1" in said


def test_a_width_is_kept_where_ids_allow_it():
    said = printed(["id", "text"], [[UUID, PROSE]], width=70)
    assert max(map(len, said.splitlines())) == 70
    assert UUID in said
    assert printed(["a"], [["x"]], width=70).splitlines()[0] == "┏━━━┓"


def test_markup_emoji_and_steering_are_text():
    said = printed(["a[b]\x1b"], [[":100: [red]x[/] \x1b[31m\n\u202e"]])
    assert "\x1b" not in said and "\u202e" not in said
    assert r":100: [red]x[/] \x1b[31m\n\u202e" in said and r"a[b]\x1b" in said


@pytest.mark.parametrize("whole", [SHA, SHA * 2, URI * 2, "/" + "directory/" * 20, "x" * MOST_CHARACTERS])
def test_ids_and_places_are_shown_whole(whole):
    assert shortened(whole) == whole


def test_a_long_text_says_that_it_goes_on():
    assert shortened("word " * 50).endswith("word…") and len(shortened("word " * 50)) <= MOST_CHARACTERS
    assert shortened('{"a":"' + "b" * 500).endswith("b…")
    listed = str([SHA] * 4)
    assert shortened(listed) == f"['{SHA}',…"
    assert shortened("a request of many words " * 9, "request_id") == "a request of many words " * 9


def test_the_widest_columns_give_way_first():
    assert fitted([10, 50, 30], [10, 5, 5], 60) == [10, 25, 25]
    assert fitted([10, 50], [10, 40], 20) == [10, 40]
    assert fitted([3, 4], [1, 1], 100) == [3, 4]
