"""What is a query and what is not, by DuckDB's own parser."""

import duckdb
import pytest

from resources.catalog.locked_catalog import NotAQuestionError, check_question

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
def connection():
    with duckdb.connect() as connection:
        connection.execute("create table v as select 1 as a, 2 as b")
        yield connection


@pytest.mark.parametrize("sql", [*split(QUERIES), *OVER_LINES, *OTHER_LETTERS])
def test_a_query_in_any_form_is_a_question(connection, sql):
    assert check_question(connection, sql) is None  # a refusal is an exception


@pytest.mark.parametrize("sql", split(OTHERS))
def test_any_other_statement_is_refused_by_its_name(connection, sql):
    with pytest.raises(NotAQuestionError, match=r"only a query can be asked .* statement: nothing was run"):
        check_question(connection, sql)


@pytest.mark.parametrize(
    "sql", ["select 1; select 2", "select 1; copy v to 'x'", "select 1) ; copy (select 1", "; select 1; drop table v"]
)
def test_several_statements_are_refused(connection, sql):
    with pytest.raises((NotAQuestionError, duckdb.ParserException), match=r"2 statements were given|syntax error"):
        check_question(connection, sql)


@pytest.mark.parametrize("sql", ["", "  ", "-- a comment", ";"])
def test_nothing_is_no_question(connection, sql):
    with pytest.raises(NotAQuestionError, match="the query is empty"):
        check_question(connection, sql)
