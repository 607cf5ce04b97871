"""Each column is described once: in its schema, or where SQL makes it."""

import pytest
from column_experiment import STEPS, experiment

from model_ops.files.columns import column, sentence
from resources.catalog import comments
from resources.catalog.build import publish, rebuild
from resources.catalog.catalog import meant, missing_column, query
from resources.catalog.comments import COLUMN_SOURCES, DATASETS, DESCRIBED, RELATIONS, columns_of, comment_on
from resources.lake.lake import LakeLayout
from resources.lake.schemas import SCHEMAS
from tests.thorough_cases import thorough_except

SAID = RELATIONS | DATASETS
OWN = {name: said["columns"] for name, said in SAID.items() if "columns" in said}
"""Sentences of columns that SQL makes anew."""


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_every_column_of_a_schema_has_a_sentence(name):
    assert [field.name for field in DESCRIBED[name] if not comment_on(name, field.name)] == []


def test_every_column_of_a_table_has_its_own():
    assert [
        (name, field.name) for name, schema in SCHEMAS.items() for field in schema if not sentence(schema, field.name)
    ] == []


def test_what_is_passed_on_has_the_sentence_of_where_it_comes_from():
    told = sentence(SCHEMAS["cleaned_interactions"], "prompt_shape")
    assert comment_on("curated_interactions", "prompt_shape") == comment_on("sft_dataset", "prompt_shape") == told
    assert comment_on("a_dataset_of_the_recipe", "prompt_shape") == told
    assert (
        comment_on("sft_dataset", "quality")
        == OWN["curated_interactions"]["quality"]
        != comment_on("cleaned_interactions", "quality")
    )
    assert comment_on("feedback_records", "tie") == sentence(SCHEMAS["feedback"], "tie")
    assert comment_on("cleaned_interactions", "status") != comment_on("interactions", "status")
    assert comment_on("length_report", "split") == comment_on("a_dataset_of_the_recipe", "split")
    assert comment_on("interactions", "unheard_of") is None is comment_on("a_dataset_of_the_recipe", "unheard_of")


def test_no_sentence_stands_twice():
    """Neither where SQL makes a column that a schema has, nor of what is passed on as it is."""
    twice = [(name, each) for name in OWN for each in OWN[name] if name in DESCRIBED and sentence(DESCRIBED[name], each)]
    passed_on = [
        (name, each)
        for name, columns in OWN.items()
        for each, text in columns.items()
        for source in (
            *SAID[name].get("reads", ()),
            *(table for table, field in columns_of(name).get(each, ()) if field == each),
        )
        if comment_on(source, each) == text
    ]
    assert (twice, passed_on) == ([], [])


def test_every_sentence_is_of_something_that_is(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    rebuild(lake)
    columns = {(row["relation"], row["column_name"]) for row in query(lake, "from relation_columns").to_pylist()}
    assert {(name, each) for name in OWN if name in RELATIONS for each in OWN[name]} <= columns
    assert DESCRIBED.keys() <= SAID.keys()
    assert {source for said in SAID.values() for source in said.get("reads", ())} <= SAID.keys()


def test_another_sentence_makes_the_catalog_anew(tmp_path, monkeypatch):
    lake = LakeLayout.open(tmp_path / "lake")
    publish(lake)
    assert publish(lake) == []
    schema = SCHEMAS["erasures"]
    place = schema.get_field_index("who")
    other = schema.set(place, column("who", schema.field("who").type, description="the person"))
    monkeypatch.setitem(comments.DESCRIBED, "erasures", other)
    assert len(publish(lake)) == len(SCHEMAS) + 1
    said = "select comment from relation_columns where relation = 'erasures' and column_name = 'who'"
    assert query(lake, said).to_pylist() == [{"comment": "the person"}]


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
    for name, sources in columns_of(step).items():
        for table, field in sources:
            assert field in (SCHEMAS[table].names if table in SCHEMAS else columns_of(table)), f"{step}.{name}"
    assert step not in SCHEMAS or set(columns_of(step)) <= set(SCHEMAS[step].names)
    assert columns_of("base_model") == {}


INTERACTIONS = set(SCHEMAS["interactions"].names)


@pytest.mark.parametrize(("name", "column"), [
    ("user_id", "user_hash"), ("userId", "user_hash"), ("timestamp", "ts"), ("latency", "latency_ms"),
    ("duration_ms", "latency_ms"), ("input_tokens", "prompt_tokens"), ("conversation_id", "session_id"), ("cost_usd", "cost"),
    ("answer", "completion"), ("prompt", "messages"), ("date", "dt"), ("mesages", "messages"), ("colour", ""),
])  # fmt: skip
def test_a_guess_leads_to_the_column(name, column):
    assert meant(name, INTERACTIONS) == column
    assert meant("gate", {"name", "wanted"}) == "name" and meant("rating", {"value", "label"}) == "value"


def test_duckdb_s_sentences_name_the_column():
    assert missing_column('Binder Error: Referenced column "user_id" not found in FROM clause!') == "user_id"
    assert missing_column('Binder Error: Table "gates" does not have a column named "gate"') == "gate"
    assert missing_column("Catalog Error: Table with name nope does not exist!") == ""
