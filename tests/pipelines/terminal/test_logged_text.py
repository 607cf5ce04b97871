r"""What stands in logs is printed as text: nothing of it steers a terminal, is taken for markup or an emoji, or is lost."""

import io
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pipelines.asking.why_text import print_history
from pipelines.releasing.measuring import Level, print_speeds
from pipelines.terminal import shared_options as terminal
from pipelines.terminal.plain_console import PlainConsole
from pipelines.terminal.printing import print_lineage, print_rows
from pipelines.terminal.shared_options import console as the_console
from pipelines.terminal.shared_options import say_error
from resources.catalog.why import STEPS, RecordHistory

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
    measured = SimpleNamespace(
        replies=[SimpleNamespace(text=NASTY)],
        tokens=1,
        tokens_per_second=1.0,
        acceptance=None,
        latency_s={"p50": 1.0, "p90": 1.0, "p99": 1.0},
    )
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
