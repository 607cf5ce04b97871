"""`millrace sql`: what it prints, and how it ends."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from datetime import date

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.commands import ask  # noqa: F401 - adds the command
from pipelines.terminal.printing import print_rows
from pipelines.terminal.shared_options import PlainConsole, app
from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

NASTY = "a\x1b[31m\x9b\u202e:100:[red]\n\t'x'"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = LakeLayout.open(tmp_path_factory.mktemp("sql") / "lake")
    row = {
        "workload": "tutor",
        "dt": date(2026, 6, 1),
        "interaction_id": "i1",
        "request_id": "r1",
        "user_hash": NASTY,
        "messages": json.dumps([{"role": "user", "content": NASTY}]),
    }
    Tables(lake).append("interactions", pa.Table.from_pylist([row], schema=SCHEMAS["interactions"]))
    rebuild(lake)
    return lake


def asked(lake, sql, *words):
    done = CliRunner().invoke(app, ["sql", sql, "--lake", str(lake.root), *words])
    if done.exception:
        raise done.exception
    return done.stdout


def test_a_table_shows_text_as_text(lake):
    said = asked(lake, "select user_hash, messages from interactions limit 1")
    assert r"a\x1b[31m\x9b\u202e:100:[red]\n\t'x'" in said and "\x1b" not in said
    assert "more" not in said


def test_csv_and_json_are_exact(lake):
    sql = "select user_hash as u, dt, 1 as a, 2 as a, null as n from interactions limit 1"
    said = asked(lake, sql, "--format", "json")
    assert json.loads(said) == [{"u": NASTY, "dt": "2026-06-01", "a": 1, "a_2": 2, "n": None}]
    assert "\x1b" not in said and "\x9b" not in said and "\u202e" not in said
    rows = list(csv.reader(io.StringIO(asked(lake, sql, "--format", "csv"), newline="")))
    assert rows == [["u", "dt", "a", "a_2", "n"], [NASTY, str(date(2026, 6, 1)), "1", "2", ""]]
    assert asked(lake, "select 1 where false", "--format", "json") == "[]\n"


def test_csv_on_a_terminal_spells_out_what_steers_it(lake, monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", out)
    print_rows(pa.table({"u": [NASTY]}), "csv", PlainConsole())
    assert out.getvalue().splitlines()[1] == r"a\x1b[31m\x9b\u202e:100:[red]\n\t'x'"


def test_a_plan_is_drawn_over_its_lines(lake):
    said = asked(lake, "explain analyze select user_hash || 'x' from interactions")
    assert len(said.splitlines()) > 5 and "explain_value" not in said and "\\n" not in said


def test_a_long_answer_is_counted_and_all_of_it_is_to_be_had(lake):
    assert "200 of 1,234 rows shown" in asked(lake, "from range(1234)")
    assert "200 of more than 100,000 rows shown" in asked(lake, "from range(1_000_000_000_000)")
    assert len(json.loads(asked(lake, "from range(1234)", "--format", "json"))) == 1234


@pytest.mark.parametrize(
    "sql",
    [
        "show tables",
        "describe interactions",
        "summarize interactions",
        "explain from interactions",
        "explain analyze from interactions",
        "values (1)",
        "from interactions limit 1",
        "pivot interactions on dt using count(*)",
        "from relations",
        "from why('r1')",
        "select * from duckdb_columns() where table_name = 'interactions'",
    ],
)
def test_every_kind_of_query_is_answered(lake, sql):
    assert asked(lake, sql)


@pytest.mark.parametrize(
    ("sql", "words", "said"),
    [
        (
            "select sum(a.range * b.range) from range(10_000_000) a, range(10_000_000) b",
            ["--timeout", "0.3"],
            "stopped after 0.3 s",
        ),
        ("select length(repeat('a', 3_000_000_000))", ["--memory", "0.5"], "more than 0.5 GiB of memory"),
        ("select list(range) from range(100_000_000)", ["--memory", "0.1"], "allow more with --memory"),
        ("select 'infinity'::timestamp", [], "cast the column to varchar"),
        ("select 1; select 2", [], "2 statements were given"),
        ("select $x", [], "parameter"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_sentence(lake, sql, words, said):
    with pytest.raises(CatalogError) as caught:
        asked(lake, sql, *words)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_ctrl_c_ends_it_at_once_and_without_a_traceback(lake, tmp_path):
    endless = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b"
    command = [sys.executable, "-m", "pipelines.cli", "sql", endless, "--lake", str(lake.root)]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("millrace-sql-*")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert (running.returncode, out, err) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


def test_values_of_all_types_are_json_and_text_not_python(capsys):

    import duckdb

    from pipelines.terminal.printing import print_rows
    from pipelines.terminal.shared_options import console

    rows = duckdb.sql(
        "select {'a': date '2026-01-01', 'b': [1.50::decimal(4, 2)]} as s, '\\xC3\\xA9'::blob as b, 'nan'::double as n, "
        "interval 3 days as i"
    ).to_arrow_table()
    print_rows(rows, "json", console)
    [row] = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (row["s"], row["b"], row["n"]) == ({"a": "2026-01-01", "b": ["1.50"]}, "é", None)
    print_rows(rows, "csv", console)
    said = capsys.readouterr().out
    assert '""a"": ""2026-01-01""' in said and "datetime" not in said and "b'" not in said
