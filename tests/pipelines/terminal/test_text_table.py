"""Tables of logged text: as wide as there is room, with ids whole and URIs unbroken."""

import io
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pipelines.asking.why_text import print_history
from pipelines.demo.traffic import write_traffic
from pipelines.releasing.measuring import Level, print_speeds
from pipelines.terminal import shared_options as terminal
from pipelines.terminal.printing import print_lineage, print_rows
from pipelines.terminal.shared_options import PlainConsole, say_error
from pipelines.terminal.shared_options import console as the_console
from pipelines.terminal.tables import MOST_CHARACTERS, fitted, print_table, shorten, text_table
from resources.catalog.why import STEPS, RecordHistory

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
    assert shorten(whole) == whole


def test_a_long_text_says_that_it_goes_on():
    assert shorten("word " * 50).endswith("word…") and len(shorten("word " * 50)) <= MOST_CHARACTERS
    assert shorten('{"a":"' + "b" * 500).endswith("b…")
    listed = str([SHA] * 4)
    assert shorten(listed) == f"['{SHA}',…"
    assert shorten("a request of many words " * 9, "request_id") == "a request of many words " * 9


def test_the_widest_columns_give_way_first():
    assert fitted([10, 50, 30], [10, 5, 5], 60) == [10, 25, 25]
    assert fitted([10, 50], [10, 40], 20) == [10, 40]
    assert fitted([3, 4], [1, 1], 100) == [3, 4]


@pytest.mark.slow
def test_a_page_of_text_and_a_page_of_html(cli, tmp_path):
    write_traffic(tmp_path / "traffic", interactions=150, days=2)
    said = cli(
        "inspect", tmp_path / "traffic" / "gateway", tmp_path / "traffic" / "feedback", "--html", tmp_path / "look.html"
    ).stdout
    for words in (
        "Is it worth a drafter?",
        "Is it worth a student?",
        "openai_pairs",
        "An n-gram drafter",
        "If it were curated",
    ):
        assert words in said, words
    assert (tmp_path / "look.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "lake").exists()


def test_wrong_input_is_one_sentence(cli, tmp_path):
    (tmp_path / "text.jsonl").write_text("not a log\n")
    for words in (
        ["inspect", tmp_path / "nowhere"],
        ["inspect", tmp_path],
        ["inspect", tmp_path, "--format", "nonsense"],
        ["inspect", "nosuch://bucket/logs"],
    ):
        done = cli(*words, check=2)
        assert done.stderr.strip().startswith("millrace: ") and "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_report_that_cannot_be_written_is_said(cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("inspect", tmp_path, "--html", tmp_path / "file" / "x.html", check=1)
    assert "Traceback" not in done.stderr and "file" in done.stderr


NASTY = "\x1b[31m\x07\x9b\u202e:100:[red]x[/red]"
SHOWN = r"\x1b[31m\x07\x9b\u202e:100:[red]x[/red]"


@pytest.fixture
def console():
    return PlainConsole(file=io.StringIO(), width=60, force_terminal=True, color_system=None)


def said(console):
    """What was printed, on one line; rich's own styles and cursor movements are off."""
    text = console.file.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    return " ".join(text.split())


def step(**values):
    return (
        dict.fromkeys(STEPS.names)
        | {"step": 1, "stage": "interactions", "rule": "read", "kept": True, "current": True}
        | values
    )


def test_rows_and_names_of_columns(console):
    print_rows(pa.table({NASTY: [NASTY], "list": [[NASTY]]}), "table", console)
    assert said(console).count(SHOWN) >= 2


def test_lineage(console):
    print_lineage(pa.Table.from_pylist([{"child": f"model:{NASTY}", "parent": f"dataset:{NASTY}"}]), "table", console)
    assert said(console) == f"model:{SHOWN} └── dataset:{SHOWN}"


def test_the_story_of_an_interaction_an_object_and_a_line(console):
    steps = [
        step(interaction_id="i1", detail=NASTY),
        step(interaction_id="i1", stage="clean", rule=NASTY, detail=NASTY),
        step(interaction_id="i1", stage="judge", name=NASTY, detail=NASTY, version=NASTY),
        step(interaction_id="i1", stage="dataset row", name=NASTY, version=NASTY, rule=NASTY, detail=NASTY),
        step(interaction_id="i1", stage="model", name=NASTY, version=NASTY),
        step(interaction_id="i2", detail=NASTY),
    ]
    subject = dict.fromkeys(("request_id", "session_id", "workload", "source", "source_format", "model"), NASTY)
    table = pa.Table.from_pylist(steps, schema=STEPS)
    print_history(RecordHistory(NASTY, "session", table, {"i1": subject, "i2": subject}), "table", console)
    assert said(console).count(SHOWN) > 20
    for what in (f"log object {NASTY}", f"line 3 of {NASTY}"):
        line = [
            step(stage="quarantine", rule=NASTY, detail=NASTY, kept=False),
            step(stage="feedback", rule=NASTY, detail=NASTY),
        ]
        print_history(RecordHistory(NASTY, what, pa.Table.from_pylist(line, schema=STEPS), {}), "table", console)
        assert SHOWN in said(console)


def test_what_a_server_said(console):
    replies = [SimpleNamespace(text=NASTY)]
    latency_s = {"p50": 1.0, "p90": 1.0, "p99": 1.0}
    measured = SimpleNamespace(replies=replies, tokens=1, tokens_per_second=1.0, acceptance=None, latency_s=latency_s)
    print_speeds([Level(NASTY, NASTY, 1, measured)], console)
    assert said(console).count(SHOWN) >= 2


def test_errors_and_whatever_else_a_command_prints(console, monkeypatch):
    monkeypatch.setattr(terminal, "errors", console)
    say_error(NASTY)
    assert f"millrace: {SHOWN}" in said(console)
    console.print(f"[green]✓[/] {NASTY.replace('[red]', '').replace('[/red]', '')}", soft_wrap=True)
    assert r"✓ \x1b[31m\x07\x9b\u202e:100:x" in said(console)
    assert isinstance(the_console, PlainConsole)


def test_styles_and_a_status_line_work_all_the_same():
    console = PlainConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print("[bold red]x[/]\ty", end="")
    assert console.file.getvalue().startswith("\x1b[1;31mx\x1b[0m") and "\\x1b" not in console.file.getvalue()
    with console.status("reading \x1b[0;0H"):
        pass
    assert r"\x1b[0;0H" in console.file.getvalue()
