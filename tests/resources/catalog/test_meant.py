"""Names that an analyst guesses lead to the column of the tables."""

import pytest

from resources.catalog.catalog import meant, missing_column
from resources.lake.tables import SCHEMAS

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
