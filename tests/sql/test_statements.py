"""What a statement of sql/ reads, calls and has bound is there: made by another statement or by Python. Somebody runs it."""

import pytest

from resources.lake.sql_files import sections, sql_text
from resources.lake.tables import SCHEMAS
from tests.sql.statements import OUTSIDE, all_statements, callers, known_functions, parsed, statement_of

STATEMENTS = all_statements()


def missing(statement):
    """Relations and functions that nothing makes."""
    made = {parsed(name).makes for name in STATEMENTS} | OUTSIDE
    return (statement.needs - made - set(SCHEMAS) - callers().strings) | (statement.functions - made - known_functions())


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_says_what_it_is_for_and_has_what_it_needs(name):
    statement = parsed(name)
    assert statement.about, f"{name}: under its name it does not say what it is for"
    assert not missing(statement), f"{name}: nothing makes {missing(statement)}"
    assert all(f"{{{each}}}" in sql_text(name) for each in statement.placeholders), f"{name}: a placeholder is not in its text"


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_run_with_its_parameters(name):
    found, statement = callers(), parsed(name)
    assert found.runs(name), f"{name}: no Python names it"
    for given in found.bound[name]:
        assert given == statement.parameters, f"{name}: parameters of a call"
    assert statement.parameters <= found.words | found.strings, (
        f"{name}: nobody binds {statement.parameters - found.words - found.strings}"
    )


def test_a_call_names_a_statement_that_is_there():
    assert callers().named - set(STATEMENTS) == set()


def test_what_is_not_there_is_found():
    found = statement_of(
        "-- Rows of a day.\nselect x from nowhere semi join feedback using (id) where day = $other or no_macro(ts)"
    )
    assert (found.about, found.needs, found.parameters) == ("Rows of a day.", {"nowhere", "feedback"}, {"other"})
    assert missing(found) == {"nowhere", "no_macro"}
    assert not callers().runs("reading/commit/no_such_statement") and not callers().runs("nowhere/counts")


def test_a_cte_is_no_relation_outside_its_scope():
    found = statement_of("-- Some.\nwith a as (select x from a) select a.*, y as z from a join b using (x)")
    assert found.needs == {"a", "b"}


def test_a_statement_that_is_not_there_is_named_with_the_file_that_would_hold_it():
    for name in ("reading/commit/nothing", "nowhere/counts", "counts"):
        with pytest.raises(
            LookupError, match=f"there is no statement {name}: add the section `-- name: {name.rpartition('/')[2]}`"
        ):
            sql_text(name)


def test_a_file_is_read_section_by_section(tmp_path):
    file = tmp_path / "some.sql"
    file.write_text("-- name: one\n-- First.\nselect 1\n\nunion all select 2\n\n-- name: two\nselect '-- name: no'\n")
    assert sections(file) == {"one": "-- First.\nselect 1\n\nunion all select 2\n", "two": "select '-- name: no'\n"}
    again = tmp_path / "again.sql"
    again.write_text("-- name: one\nselect 1\n-- name: one\nselect 2\n")
    with pytest.raises(ValueError, match="two sections of one name"):
        sections(again)
