"""`millrace sql`: parameters, pages, and files of rows."""

import csv
import json
from datetime import date

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipelines.commands import ask  # noqa: F401 - adds the command
from pipelines.terminal.shared_options import app
from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = LakeLayout.open(tmp_path_factory.mktemp("rows") / "lake")
    rows = [
        {"workload": "tutor", "dt": date(2026, 6, 1 + n % 2), "interaction_id": f"i{n}", "prompt_tokens": n} for n in range(6)
    ]
    Tables(lake).append("interactions", pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"]))
    rebuild(lake)
    return lake


def asked(lake, sql, *words):
    done = CliRunner().invoke(app, ["sql", sql, "--lake", str(lake.root), *map(str, words)])
    if done.exception:
        raise done.exception
    return done.stdout


def test_named_parameters_are_read_as_what_they_are_compared_with(lake):
    sql = "select interaction_id as id from interactions where dt = $day and prompt_tokens > $least order by id"
    said = json.loads(asked(lake, sql, "--param", "day=2026-06-01", "--param", "least=1", "--format", "json"))
    assert [row["id"] for row in said] == ["i2", "i4"]
    quoted = asked(lake, "select $text as t", "--param", "text=it's = 'x'; drop", "--format", "csv")
    assert quoted == "t\nit's = 'x'; drop\n"


@pytest.mark.parametrize(
    ("sql", "words", "said"),
    [
        ("select 1", ["--param", "day"], "give NAME=VALUE"),
        ("select $a", ["--param", "a=1", "--param", "a=2"], "given twice"),
        ("select $a", ["--param", "b=1"], "parameter"),
        ("from interactions where dt = $day", ["--param", "day=yesterday"], "yesterday"),
        ("select 1", ["--format", "parquet"], "add --out FILE.parquet"),
        ("select 1", ["--out", "rows.xlsx"], "names no format"),
        ("select 1", ["--out", "no-such-folder/rows.csv"], "existing folder"),
        ("select union_value(a := 1) as u", ["--out", "rows.parquet"], "cast it to varchar"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_no_file(lake, tmp_path, monkeypatch, sql, words, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CatalogError) as caught:
        asked(lake, sql, *words)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_into_the_lake(lake, tmp_path):
    (tmp_path / "link").symlink_to(lake.root)
    for place in (lake.root / "rows.csv", tmp_path / "link" / "tables" / "rows.csv"):
        with pytest.raises(CatalogError, match="lies in the lake"):
            asked(lake, "select 1", "--out", place)


@pytest.mark.parametrize("ending", ["csv", "json", "parquet", "arrow"])
def test_rows_in_a_file_are_those_of_the_query(lake, tmp_path, ending):
    out = tmp_path / f"rows.{ending}"
    sql = "select interaction_id as id, prompt_tokens as n, prompt_tokens as n from interactions order by id"
    assert asked(lake, sql, "--out", out) == f"wrote 6 rows to {out}\n"
    if ending == "csv":
        rows = [(row["id"], int(row["n"]), int(row["n_2"])) for row in csv.DictReader(out.open())]
    elif ending == "json":
        rows = [tuple(row.values()) for row in json.loads(out.read_text())]
    else:
        rows = (pq.read_table(out) if ending == "parquet" else pa.ipc.open_file(out).read_all()).to_pylist()
        rows = [tuple(row.values()) for row in rows]
    assert rows == [(f"i{n}", n, n) for n in range(6)]


def test_pages_follow_each_other(lake):
    pages = [
        asked(lake, "select prompt_tokens from interactions order by 1", "--format", "csv", "--limit", 4, "--page", page)
        for page in (1, 2, 3)
    ]
    assert [page.split()[1:] for page in pages] == [["0", "1", "2", "3"], ["4", "5"], []]
    shown = asked(lake, "from range(1000)", "--limit", 300, "--page", 2)
    assert "│ 300 " in shown and "│ 599 " in shown and "│ 600 " not in shown and "--page 3 shows more" in shown
    assert "these are the last rows" in asked(lake, "from range(10)", "--limit", 5, "--page", 2)
    assert "│ 200 " in asked(lake, "from range(1000)", "--page", 2)


def test_a_page_of_an_endless_query_ends(lake):
    assert "│ 4 " in asked(lake, "from range(1_000_000_000_000)", "--limit", 5, "--timeout", 20)


def test_the_python_door_gives_pages_too(lake):
    import millrace

    door = millrace.open(lake.root)
    assert door.page("from range(10)", limit=4, page=3)["range"].to_list() == [8, 9]
    assert door.sql("select count(*) as n from interactions where dt = $day", {"day": "2026-06-02"}).equals(
        pl.DataFrame({"n": [3]})
    )
    with pytest.raises(millrace.Error, match="give both from 1"):
        door.page("select 1", limit=0)
