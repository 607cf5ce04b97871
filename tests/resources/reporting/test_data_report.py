"""`millrace report data`: one page without network, on which logged text is text."""

import json
import os
import re
from datetime import date

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.commands import ask  # noqa: F401 - adds the command
from pipelines.terminal.shared_options import app
from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import SCHEMAS, Tables
from resources.reporting.data_report import (
    MOST_CHARACTERS,
    PEOPLE,
    column_statistics,
    files_relation,
    rows_without_texts,
    write_data_report,
)

NASTY = "<script>alert(1)</script>\u202e" + "x" * 200


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = LakeLayout.open(tmp_path_factory.mktemp("report") / "lake")
    rows = [
        {
            "workload": "tutor",
            "dt": date(2026, 6, 1 + n % 2),
            "interaction_id": f"i{n}",
            "request_id": NASTY,
            "prompt_tokens": 10 * n,
            "status": "success" if n else "error",
            "messages": json.dumps([{"content": NASTY}]),
        }
        for n in range(4)
    ]
    rows.append({**rows[0], "interaction_id": "chat", "source": "millrace_chat"})  # no traffic of the product
    Tables(lake).append("interactions", pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"]))
    rebuild(lake)
    return lake


def test_the_page_shows_statistics_and_escapes_logged_text(lake, tmp_path):
    write_data_report(lake, tmp_path / "data.html")
    page = (tmp_path / "data.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page and "\u202e" not in page and "x" * MOST_CHARACTERS not in page
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page) and "http://" not in page and "https://" not in page
    [tokens] = re.findall(r'<tr><td data-column="column">prompt_tokens</td>(.*?)</tr>', page)
    assert re.findall(r">([^<]*)</td>", tokens) == ["BIGINT", "0.0", "4", "12", "0", "30"]
    [day] = re.findall(r'<tr><td data-column="workload">tutor</td>(<td data-column="day">2026-06-01</td>.*)</tr>', page)
    assert re.findall(r'data-column="(\w+)"[^>]*>([^<]+)</td>', day)[:2] == [
        ("day", "2026-06-01"),
        ("requests", "2"),
    ]  # a phone shows the names


def test_without_previews_no_text_of_a_row_is_on_the_page(lake, tmp_path):
    write_data_report(lake, tmp_path / "data.html", previews=False)
    page = (tmp_path / "data.html").read_text()
    assert "alert(1)" not in page and "xxxx" not in page and ">i0<" not in page and ">prompt_tokens</td>" in page


def test_misuse_is_one_sentence_and_writes_nothing(lake, tmp_path):
    for words, said in (
        (["data", "--out", lake.root / "d.html"], "lies in the lake"),
        (["nothing"], "give data, or one of tutor"),
        (["data", "--out", tmp_path / "no" / "d.html"], "existing folder"),
    ):
        done = CliRunner().invoke(app, ["report", *map(str, words), "--lake", str(lake.root)])
        assert isinstance(done.exception, CatalogError) and said in str(done.exception)
    assert list(tmp_path.iterdir()) == [] and not (lake.root / "d.html").exists()


def test_a_device_is_not_replaced_by_the_page(lake, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(app, ["report", "data", "--out", str(tmp_path / "pipe"), "--lake", str(lake.root)])
    assert "give a file" in str(done.exception) and (tmp_path / "pipe").is_fifo()


def test_statistics_of_files_show_no_text_and_count_over_all_of_them(tmp_path):
    import pyarrow.parquet as pq

    for name, first in (("train", 0), ("test", 10)):
        pq.write_table(
            pa.table({"messages": [NASTY, "b"], "weight": [first, None], "said": [[NASTY], ["b"]]}),
            tmp_path / f"{name}.parquet",
        )
    relation = files_relation([tmp_path / "train.parquet", tmp_path / "test.parquet"])
    with workbench() as connection:
        found = {row["name"]: row for row in column_statistics(connection, relation, with_texts=False)[1]}
    assert found["weight"] == {
        "name": "weight",
        "type": "BIGINT",
        "nulls": "50.0",
        "distinct": "2",
        "least": "0",
        "most": "10",
        "mean": "5",
    }
    assert {found[name][key] for name in ("messages", "said") for key in ("least", "most")} == {""}


def test_a_preview_of_rows_shows_names_numbers_and_sizes_and_nothing_that_was_said(lake):
    with workbench() as connection:
        attach_slice(connection, Tables(lake), "interactions", "tutor")
        found = rows_without_texts(connection, "from interactions where source is null order by interaction_id")
        assert {row["column"]: row["row 1"] for row in found} == {
            "workload": "tutor",
            "dt": "2026-06-01",
            "messages": "248 characters",
            "prompt_tokens": "0",
            "status": "error",
        }
        assert found[0].keys() == {"column", "row 1", "row 2", "row 3"} and NASTY[:20] not in str(found)
        row = {
            "workload": "tutor",
            "dt": date(2026, 6, 1),
            "name": "thumbs",
            "source": "ann@example.org",
            "session_id": "s",
            "value": 1.0,
        }
        connection.register("told", pa.Table.from_pylist([row], schema=SCHEMAS["feedback"]))
        assert rows_without_texts(connection, "from told", PEOPLE["feedback"]) == [
            {"column": "workload", "row 1": "tutor"},
            {"column": "dt", "row 1": "2026-06-01"},
            {"column": "name", "row 1": "thumbs"},
            {"column": "value", "row 1": "1"},
        ]
