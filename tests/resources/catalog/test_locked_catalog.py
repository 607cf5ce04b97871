"""What a hostile or careless question could read, write or take, tried on a real catalog."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest
from interaction_rows import interaction, store

from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError, ask, open_catalog, query
from resources.catalog.locked_catalog import Limits, NotAQuestionError, check_question
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

READS = """
from '{outside}'
from read_text('{outside}')
from read_blob('{outside}')
from read_csv('{outside}')
from read_json('{outside}')
from read_ndjson_objects('{outside}')
from sniff_csv('{outside}')
from read_parquet('{parquet}')
from parquet_metadata('{parquet}')
from parquet_schema('{parquet}')
from parquet_kv_metadata('{parquet}')
from read_duckdb('{database}', table_name = 't')
from query_table('{parquet}')
from query('from read_text(''{outside}'')')
from json_execute_serialized_sql(json_serialize_sql('select * from read_text(''{outside}'')'))
from glob('/etc/*')
from glob('{lake}/**')
from read_text('{lake}/lake.json')
from read_text('{lake}/.dagster/secret')
from read_text('{lake}/tables/link')
from read_text('{lake}/tables/folder/secret')
from read_text('{lake}/tables/interactions/_delta_log/00000000000000000000.json')
from read_parquet('{lake}/tables/interactions/**/*.parquet')
from read_parquet('{lake}/tables/unnamed.parquet')
from read_parquet('{file}/../../../../unnamed.parquet')
from read_parquet('{lake}/tables/../tables/unnamed.parquet')
from read_parquet(getvariable('lake') || '/tables/unnamed.parquet')
from read_text('file://{outside}')
from read_text('~/.bashrc')
from read_text('/dev/stdin')
from read_text('/proc/self/environ')
from read_csv('https://example.com/a.csv')
from read_parquet('s3://example/a.parquet')
from read_parquet('hf://datasets/a/b.parquet')
from duckdb_extensions()
describe from read_csv('{outside}')
summarize from read_csv('{outside}')
explain analyze from read_text('{outside}')
pivot read_csv('{outside}', header = false) on column0
select (select content from read_text('{outside}'))
with x as (from read_text('{outside}')) from x
"""
WRITES = """
copy (select 1) to '{outside}'
copy (select 1) to '{beside}'
copy (select 1) to '{file}'
copy (select 1) to '{lake}/tables/evil.parquet'
copy (select 1) to '{lake}/catalog.duckdb'
copy interactions to '{beside}' (format parquet, partition_by (workload))
explain analyze copy (select 1) to '{file}'
with x as (select 1) copy x to '{file}'
from query('copy (select 1) to ''{file}''')
with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x
with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) values (1)
with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) select 1 union all select 2
(with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x)
with x as materialized /*a*/(/*b*/ CoPy interactions to '{file}' (format parquet, use_tmp_file false)) select 1
with y as (select 1), x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from y
select (with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) select 1)
from (with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x)
with x as (copy (select 1 as a, 2 as b) to '{file}' (format parquet, use_tmp_file false)) pivot x on a using sum(b)
with x as (/**/"copy"/**/ interactions to '{file}') pivot x on a using sum(b)
explain analyze with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x
explain (analyze) with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x
describe with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x
summarize with x as (copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false)) from x
from query('with x as (copy (select 1 as a) to ''{file}'' (format parquet, use_tmp_file false)) from x')
from "query"('with x as (co' || 'py (select 1 as a) to ''{file}'' (format parquet, use_tmp_file false)) from x')
from system.main.query('with x as (copy (select 1 as a) to ''{file}'' (format parquet, use_tmp_file false)) from x')
from json_execute_serialized_sql(json_serialize_sql('with x as (copy (select 1 as a) to ''{file}'' (format parquet, use_tmp_file false)) from x'))
pivot (from query('with x as (copy (select 1 as a) to ''{file}'' (format parquet, use_tmp_file false)) from x')) on a using sum(a)
with x as (delete from artefacts returning name) from x
with x as (update artefacts set name = 'evil' returning name) from x
export database '{beside}'
import database '{beside}'
attach '{beside}'
attach ':memory:' as other
create table evil as select 1
create or replace view interactions as select 1
create temp view interactions as select 1
create macro why(identifier) as table select 1
insert into artefacts (name) values ('evil')
with x as (insert into artefacts (name) values ('evil') returning name) from x
update artefacts set name = 'evil'
delete from artefacts
drop view interactions
from enable_logging(storage = 'file', storage_path = '{beside}')
call enable_logging(storage = 'file', storage_path = '{beside}')
from enable_profiling(save_location = '{beside}')
pragma enable_profiling
from register_external_resource_type('x', 'y')
from create_external_resource('x')
"""
SETTINGS = """
set enable_external_access = true
set allowed_paths = ['/etc/passwd']
set allowed_directories = ['/']
set lock_configuration = false
reset lock_configuration
set memory_limit = '1TB'
set threads = 1000
set temp_directory = '{beside}'
set variable lake = '/etc'
set autoload_known_extensions = true
set python_enable_replacements = true
set search_path = 'memory'
use memory
pragma memory_limit = '1TB'
install httpfs
load httpfs
load '{beside}'
update extensions
create secret (type s3)
create persistent secret (type s3)
from outside
"""


def lines(text):
    return text.strip().splitlines()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A lake of one table, with what lies in it and beside it that no question may open."""
    home = tmp_path_factory.mktemp("locked")
    lake = LakeLayout.open(home / "lake")
    store(Tables(lake), "interactions", [interaction(n, "hello", "you", day=n % 3) for n in range(6)])
    outside = home / "outside.csv"
    outside.write_text("a,b\n1,SECRET\n")
    tables = lake.root / "tables"
    (tables / "link").symlink_to(outside)
    (home / "folder").mkdir()
    (home / "folder" / "secret").write_text("SECRET")
    (tables / "folder").symlink_to(home / "folder")
    lake.dagster_home.mkdir()
    (lake.dagster_home / "secret").write_text("SECRET")
    for parquet in (home / "outside.parquet", tables / "unnamed.parquet"):
        duckdb.sql("select 'SECRET' as a").write_parquet(str(parquet))
    with duckdb.connect(str(home / "other.duckdb")) as other:
        other.execute("create table t as select 'SECRET' as a")
    rebuild(lake)
    return lake, {
        "lake": lake.root,
        "outside": outside,
        "parquet": home / "outside.parquet",
        "database": home / "other.duckdb",
        "beside": home / "beside",
        "file": Tables(lake).files("interactions")[0],
    }


@pytest.fixture(scope="module")
def connection(places):
    """A locked connection, asked without a look at the statement: DuckDB's own lock has to hold."""
    with open_catalog(places[0]) as connection:
        yield connection


def everything(home: Path) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(home.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("sql", lines(READS))
def test_no_file_is_read_but_those_of_the_views(places, connection, sql):
    lake, names = places
    with pytest.raises(CatalogError):
        print(query(lake, sql.format(**names)).to_pylist())
    with pytest.raises(duckdb.Error) as caught:
        print(connection.sql(sql.format(**names)).fetchall())
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("sql", lines(WRITES))
def test_nothing_is_written_anywhere(places, sql):
    lake, names = places
    outside = globals()["query"]  # noqa: F841 - a Python variable of the name `outside` is no table
    before = everything(lake.root.parent)
    with pytest.raises(CatalogError):
        query(lake, sql.format(**names))
    assert everything(lake.root.parent) == before


@pytest.mark.parametrize("sql", lines(SETTINGS))
def test_no_setting_is_changed(places, sql):
    lake, names = places
    outside = duckdb.sql("select 'SECRET'")  # noqa: F841 - a Python variable is no table
    with pytest.raises(CatalogError):
        query(lake, sql.format(**names))


def test_a_file_that_is_refused_is_named_with_what_reads_it(places):
    with pytest.raises(
        CatalogError,
        match=r"reads only the tables and datasets of the lake .*outside.csv.*"
        r"plain DuckDB on .*catalog.duckdb",
    ):
        query(places[0], f"from read_csv('{places[1]['outside']}')")


def test_the_locks_of_two_questions_at_once_are_two(places):
    lake = places[0]
    with open_catalog(lake, Limits(memory_gib=1)) as one, open_catalog(lake) as other:
        assert (
            one.sql("select count(*) from interactions").fetchall() == other.sql("select count(*) from interactions").fetchall()
        )
        rebuild(lake)  # while both are open
        assert query(lake, "select count(*) as n from interactions").to_pylist() == [{"n": 6}]


def test_no_secret_of_the_environment_is_shown(places, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "AWS_SECRET_ACCESS_KEY", "MILLRACE_USER_HASH_KEY"):
        monkeypatch.setenv(name, "http://user:SECRET@proxy:80")
    for sql in (
        "from duckdb_settings()",
        "from duckdb_variables()",
        "from duckdb_secrets()",
        "select current_setting('http_proxy')",
    ):
        assert "SECRET" not in str(query(places[0], sql).to_pylist())
    with pytest.raises(CatalogError):
        query(places[0], "select getenv('MILLRACE_USER_HASH_KEY')")


def test_what_a_question_spills_is_gone_afterwards(places, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ask(places[0], "select * from range(2_000_000) order by random()", limits=Limits(memory_gib=0.04)) as answer:
        assert next(answer.batches).num_rows > 0
        assert [folder.name for folder in tmp_path.iterdir()]
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded_and_the_way_out_is_named(places):
    with (
        pytest.raises(CatalogError, match=r"more than 0\.1 GiB of memory and 0\.4 GiB of files: .*--memory"),
        ask(places[0], "select list(range) from range(50_000_000)", limits=Limits(memory_gib=0.1)) as answer,
    ):
        list(answer.batches)


def test_a_catalog_that_another_program_writes_is_said_to_be(places):
    lake = places[0]
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.read()",
            str(lake.catalog),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        writer.stdout.readline()
        with pytest.raises(CatalogError, match=r"is open for writing in another program .* close it there"):
            query(lake, "select 1")
    finally:
        writer.communicate()


def test_a_file_list_that_leads_out_of_the_lake_is_not_followed(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    rebuild(lake)
    (tmp_path / "outside").write_text("SECRET")
    with duckdb.connect(str(lake.catalog)) as changed:
        changed.execute("insert into view_files values ('x', '../outside'), ('x', '/etc/passwd')")
    for path in (f"{lake.root}/../outside", tmp_path / "outside", "/etc/passwd"):
        with pytest.raises(CatalogError):
            query(lake, f"from read_text('{path}')")


QUERIES = """
select 1 | select 1; | select 1;; | select 1; -- done | select 1 -- last | select ';' | /* a ; */ select 1 | (select 1) | (select 1) union (select 2) order by 1; | from v
values (1) | table v | with x as (select 1) from x | with recursive x(a) as (select 1 union all select a + 1 from x) from x
describe v | desc v | describe select 1 | describe | show tables | show all tables | show databases | show v
summarize v | summarize select 1 | pivot v on a using sum(b) | pivot v on a in (1) using sum(b); | unpivot v on a, b
from v pivot (sum(b) for a in (1)) | with x as (from v) pivot x on a using sum(b) | select $x | select ?
explain select 1 | explain analyze select 1 | explain (format json) select 1 | explain (analyze, format json) from v
select (copy) from (select 1 as copy) | with copy as (select 1 as "update") select "update" + 1 from copy | select query from (select 1 as query)
with x as (select list_transform([1], lambda n: n + 1)) from x | select count(*) filter (where a = 1) over () from v | from v positional join v as w
explain (select 1) | explain /* x */ analyze from v | explain with x as (select 1) from x | select 'copy v to x; drop table v'
"""
OTHER_LETTERS = ["select 'é' as x", "select 'Ä' as x; ", "select '👩‍👩‍👧'; -- größe", "explain select 'größe'",
    "select 'é' as é -- ü\n;",
    "pivot (select 'é' as a, 1 as b) on a using sum(b)"]  # fmt: skip
OVER_LINES = ["-- first\nselect 1", "explain analyze -- y\nfrom v", "select a, -- a\n  b -- b\nfrom v;\n"]
OTHERS = """
copy v to 'x' | copy (select 1) to 'x' | copy (pivot v on a using sum(b)) to 'x' | copy v from 'x'
with x as (select 1) insert into v select 1, 2 | insert into v select 1, 2 | insert into v pivot v on a using sum(b)
create table x as select 1 | create temp table x as select 1 | create table x as pivot v on a using sum(b) | create macro f() as 1
create secret (type s3) | update v set a = 1 | delete from v | truncate v | drop table v | alter table v add column c int
export database 'x' | import database 'x' | attach 'x' | detach x | use x | set x = 1 | set variable x = 1 | reset threads
pragma version | call pragma_version() | install httpfs | load httpfs | update extensions | checkpoint | vacuum | analyze
begin | commit | prepare x as select 1 | execute x | deallocate x | comment on table v is 'x'
explain copy v to 'x' | explain analyze copy v to 'x' | explain (analyze) copy v to 'x' | explain (format json) copy v to 'x'
explain analyze create table x as select 1 | explain analyze insert into v values (1, 2)
explain analyze copy (pivot v on a using sum(b)) to 'x'
"""


def split(text):
    return [sql.strip() for line in text.strip().splitlines() for sql in line.split(" | ")]


@pytest.fixture(scope="module")
def bare_connection():
    with duckdb.connect() as bare_connection:
        bare_connection.execute("create table v as select 1 as a, 2 as b")
        yield bare_connection


@pytest.mark.parametrize("sql", [*split(QUERIES), *OVER_LINES, *OTHER_LETTERS])
def test_a_query_in_any_form_is_a_question(bare_connection, sql):
    assert check_question(bare_connection, sql) is None  # a refusal is an exception


@pytest.mark.parametrize("sql", split(OTHERS))
def test_any_other_statement_is_refused_by_its_name(bare_connection, sql):
    with pytest.raises(NotAQuestionError, match=r"only a query can be asked .* statement: nothing was run"):
        check_question(bare_connection, sql)


@pytest.mark.parametrize(
    "sql", ["select 1; select 2", "select 1; copy v to 'x'", "select 1) ; copy (select 1", "; select 1; drop table v"]
)
def test_several_statements_are_refused(bare_connection, sql):
    with pytest.raises((NotAQuestionError, duckdb.ParserException), match=r"2 statements were given|syntax error"):
        check_question(bare_connection, sql)


@pytest.mark.parametrize("sql", ["", "  ", "-- a comment", ";"])
def test_nothing_is_no_question(bare_connection, sql):
    with pytest.raises(NotAQuestionError, match="the query is empty"):
        check_question(bare_connection, sql)
