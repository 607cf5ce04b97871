"""`millrace.open(lake).sql` reads the lake's own rows and nothing else, writes nothing, and stays within its bounds: attacked
in more than 40 ways. tests/resources/catalog/test_locked_catalog.py attacks the lock itself; `millrace sql` asks through the same
function."""

import hashlib
import time
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import millrace
from pipelines.commands import ask  # noqa: F401 - adds the command
from pipelines.terminal.shared_options import app
from resources.catalog.build import rebuild
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

READS = {  # what plain DuckDB answers with the secret
    "a file by its name": "from '{outside}.csv'",
    "a text file": "select content from read_text('{outside}.csv')",
    "bytes": "select content from read_blob('{outside}.csv')",
    "CSV": "from read_csv('{outside}.csv', header = true)",
    "JSON": "from read_json_objects('{outside}.json')",
    "Parquet": "from read_parquet('{outside}.parquet')",
    "another database's table": "from read_duckdb('{outside}.duckdb', table_name = 't')",
    "a list of files": "from glob('{home}/a*name')",
    "above the lake": "select content from read_text('{lake}/../outside.csv')",
    "above a table": "from read_parquet('{lake}/tables/../../outside.parquet')",
    "a link in the lake": "select content from read_text('{lake}/tables/link')",
    "a file of the lake that no view names": "select content from read_text('{lake}/secret.txt')",
    "the lake's variable": "select content from read_text(getvariable('lake') || '/../outside.csv')",
    "a file uri": "select content from read_text('file://{outside}.csv')",
    "inside a condition": "select 1 where exists (select 1 from read_text('{outside}.csv') where content like '%SECRET%') union all select content from read_text('{outside}.csv')",
    "inside a lateral join": "select t.* from (values (1)) as v(n), lateral (from read_text('{outside}.csv')) as t",
    "after a comment": "select /* ; */ content -- from interactions\n from read_text('{outside}.csv')",
    "SQL in a text": "from query('select content from read_text(''{outside}.csv'')')",
    "serialized SQL": "from json_execute_serialized_sql(json_serialize_sql('select content from read_text(''{outside}.csv'')'))",
    "in a pivot": "pivot (from read_csv('{outside}.csv', header = true)) on a using first(b)",
    "the metadata of a file": "from parquet_kv_metadata('{outside}.parquet')",
}
ACTS = {"copy to": "copy interactions to '{home}/stolen.csv'",
    "copy over a file that may be read": "copy (select 1) to '{file}'",
    "copy in a CTE": "with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x",
    "copy from": "copy artefacts from '{outside}.csv'",
    "attach": "attach '{outside}.duckdb' as other",
    "export": "export database '{home}/stolen'", "import": "import database '{home}'", "install": "install httpfs",
    "load": "load httpfs", "set": "set enable_external_access = true",
    "set the lake": "set variable lake = '{home}'", "reset": "reset lock_configuration", "pragma": "pragma enable_profiling",
    "call": "call enable_logging(storage = 'file', storage_path = '{home}/stolen')",
    "a logging function": "from enable_logging(storage = 'file', storage_path = '{home}/stolen')",
    "a secret": "create persistent secret (type s3)",
    "a view with a file's name": 'create view "{outside}.csv" as select 1',
    "a macro over another": "create or replace macro why(identifier) as table select 1",
    "insert": "insert into artefacts (name) values ('evil')",
    "insert in a CTE": "with x as (insert into artefacts (name) values ('evil') returning name) from x",
    "delete": "delete from artefacts",
    "a prepared statement": "prepare p as select 1",
    "several statements": "select 1; copy (select 1) to '{home}/stolen.csv'",
    "a statement behind a comment": "select 1; -- harmless\n copy (select 1) to '{home}/stolen.csv'",
    "explain that runs": "explain analyze copy (select 1) to '{home}/stolen.csv'", "a transaction": "begin",
    "the web": "from read_csv('https://example.com/a.csv')",
    "an object store": "from read_parquet('s3://example/a.parquet')",
    "the environment": "select getenv('ATTACKED')", "a Python variable": "from secret_frame",
    "a registered function": "select open('{outside}.csv')",
    "another process's environment": "select content from read_text('/proc/self/environ')"}  # fmt: skip
BOMBS = {
    "a list of everything": "select list(range) from range(1_000_000_000)",
    "a long text": "select length(repeat('a', 3_000_000_000))",
    "a wide sort": "select count(*) from (select range::varchar || repeat('x', 1000) as t from range(100_000_000) order by hash(range))",
    "recursion without end": "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
    "a product of products": "select sum(a.range * b.range) from range(10_000_000) a, range(10_000_000) b",
    "sleep": "select sleep_ms(1_000_000)",
    "rows without end": "from range(1_000_000_000_000)",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A lake, and secrets beside it, in it and behind a link in it."""
    home = tmp_path_factory.mktemp("attacked")
    lake = LakeLayout.open(home / "lake")
    Tables(lake).append(
        "interactions", pa.Table.from_pylist([{"workload": "tutor", "interaction_id": "i"}], schema=SCHEMAS["interactions"])
    )
    (home / "outside.csv").write_text("a,b\n1,SECRET\n")
    (home / "outside.json").write_text('{"a": "SECRET"}')
    (home / "a SECRET name").write_text("")
    duckdb.sql(
        "copy (select 'SECRET' as a) to '" + str(home / "outside.parquet") + "' (format parquet, kv_metadata {k: 'SECRET'})"
    )
    with duckdb.connect(str(home / "outside.duckdb")) as other:
        other.execute("create table t as select 'SECRET' as a")
    (lake.root / "tables" / "link").symlink_to(home / "outside.csv")
    (lake.root / "secret.txt").write_text("SECRET")
    rebuild(lake)
    return lake, {"home": home, "lake": lake.root, "outside": home / "outside", "file": Tables(lake).files("interactions")[0]}


def everything(home: Path) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(home.rglob("*")) if file.is_file()}


@pytest.fixture(scope="module")
def plain(places):
    """The catalog in plain DuckDB, which has no lock."""
    with duckdb.connect(str(places[0].catalog), read_only=True) as connection:
        connection.execute(f"set variable lake = '{places[0].root}'")
        yield connection


@pytest.mark.parametrize("way", READS)
def test_nothing_outside_the_lake_is_read(places, plain, way):
    lake, names = places
    sql = READS[way].format(**names)
    assert "SECRET" in str(plain.execute(sql).fetchall()), "the attack is none: plain DuckDB does not show the secret either"
    with pytest.raises(millrace.Error) as caught:
        print(millrace.open(lake.root).sql(sql, arrow=True))
    assert "SECRET" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ACTS)
def test_nothing_is_written_loaded_or_set(places, monkeypatch, way):
    lake, names = places
    secret_frame = pa.table({"a": ["SECRET"]})
    monkeypatch.setenv("ATTACKED", "SECRET")
    before = everything(names["home"])
    with pytest.raises(millrace.Error) as caught:
        print(millrace.open(lake.root).sql(ACTS[way].format(**names), arrow=True))
    assert "SECRET" not in str(caught.value) and secret_frame.num_rows == 1
    assert everything(names["home"]) == before


@pytest.mark.parametrize("way", BOMBS)
def test_time_and_memory_are_bounded(places, way):
    lake = millrace.open(places[0].root)
    start, before = time.monotonic(), psutil.Process().memory_info().rss
    with pytest.raises(millrace.Error, match=r"stopped after 0\.3 s|GiB of memory"):
        lake.sql(BOMBS[way], arrow=True, timeout=0.3, memory_gib=0.1)
    assert time.monotonic() - start < 20 and psutil.Process().memory_info().rss - before < 2 * 2**30
    assert lake.sql("select 1 as n")["n"].item() == 1


def test_the_command_asks_through_the_same_door(places):
    lake, names = places
    for way in ("a text file", "a link in the lake"):
        done = CliRunner().invoke(app, ["sql", READS[way].format(**names), "--lake", str(lake.root), "--format", "json"])
        assert done.exception is not None and "SECRET" not in done.stdout + str(done.exception)
    done = CliRunner().invoke(app, ["sql", ACTS["copy to"].format(**names), "--lake", str(lake.root)])
    assert "only a query can be asked" in str(done.exception) and not (names["home"] / "stolen.csv").exists()


def test_values_are_values_and_never_sql(places):
    found = millrace.open(places[0].root).sql("select $text as t", {"text": "'; copy (select 1) to 'x'; --"})
    assert found["t"].to_list() == ["'; copy (select 1) to 'x'; --"]


def test_there_are_at_least_forty_ways():
    assert len(READS) + len(ACTS) + len(BOMBS) >= 40
