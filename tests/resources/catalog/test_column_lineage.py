"""The YAML files beside the SQL: what they say of columns is what an experiment shows."""

import pytest
from column_experiment import STEPS, experiment

from resources.catalog.comments import COLUMN_SOURCES, columns_of
from resources.lake.tables import SCHEMAS
from tests.thorough_cases import thorough_except

KEYS = {"workload", "interaction_id", "interaction_ids", "row_id"}
"""Columns that find a row again: the experiment cannot change them."""


@pytest.mark.slow
@pytest.mark.parametrize("step", thorough_except(["sft_dataset"], sorted(STEPS)))
def test_what_is_said_of_columns_is_what_an_experiment_shows(step, tmp_path):
    said = {column: {".".join(source) for source in sources} for column, sources in columns_of(step).items()}
    found = experiment(step, tmp_path)
    wrong = {
        column: (found.get(column), said.get(column))
        for column in {*found, *said} - KEYS
        if found.get(column, set()) != said.get(column, set())
    }
    assert wrong == {}, "(found, said) by column"


@pytest.mark.parametrize("step", sorted(COLUMN_SOURCES))
def test_every_named_column_of_a_table_is_one(step):
    for column, sources in columns_of(step).items():
        for table, field in sources:
            assert field in (SCHEMAS[table].names if table in SCHEMAS else columns_of(table)), f"{step}.{column}"
    assert step not in SCHEMAS or set(columns_of(step)) <= set(SCHEMAS[step].names)
    assert columns_of("base_model") == {}
