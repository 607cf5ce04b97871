"""Every file of sql/ says in its header what it needs and makes; its syntax tree must agree."""

import re

import pytest

from tests.sql.statements import PYTHON_FUNCTIONS, SQL, header_of, sql_files, statement_of

MACROS = PYTHON_FUNCTIONS | {
    match[1] for name in sql_files() if (match := re.search(r"create (?:or replace )?(?:temp )?macro (\w+)", (SQL / f"{name}.sql").read_text()))
}


@pytest.mark.parametrize("name", sql_files())
def test_the_header_says_what_the_statement_needs_and_makes(name):
    text = (SQL / f"{name}.sql").read_text()
    header = header_of(text)
    found = statement_of(text, header.placeholders, MACROS)
    assert header.about, f"{name}: the header does not say what the statement is for"
    assert header.needs == found.needs, f"{name}: needs"
    assert header.parameters == found.parameters, f"{name}: parameters"
    assert header.makes == found.makes, f"{name}: makes"


def test_a_header_that_names_too_little_is_found():
    text = "-- Rows of a day.\n-- needs: interactions\n-- parameters: $day\n-- makes: rows (id)\nselect id from interactions where dt = $day"
    header, found = header_of(text), statement_of(text, set(), MACROS)
    assert (header.needs, header.parameters, header.makes) == (found.needs, found.parameters, found.makes)
    more = text.replace("from interactions", "from interactions semi join feedback using (id) where day = $other or moment(ts) and")
    found = statement_of(more.replace("and where", "and"), set(), MACROS)
    assert found.needs == {"interactions", "feedback", "moment()"} and found.parameters == {"day", "other"}


def test_a_cte_is_no_relation_outside_its_scope():
    found = statement_of("with a as (select x from a) select a.*, y as z from a join b using (x)", set(), MACROS)
    assert found.needs == {"a", "b"} and found.makes == "rows (a.*, z)"
