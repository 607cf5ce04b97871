"""Seeds that hold evaluation items leave, are named, and the others stay as they were."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resources.composing.seeds import drop_contaminated_seeds, import_seeds
from resources.curating.curation import Decontamination
from resources.curating.decontamination import EVAL_ITEMS

QUESTION = "How many loaves does the baker sell on a market day when each cart brings forty sacks of flour to the mill"


@pytest.fixture
def seeds(tmp_path):
    told = {"handmade": ["What is a mill?", f"Dear friend, {QUESTION.upper()}?", "What is a wheel?"],
            "synthetic": ["Why does bread rise?"]}  # fmt: skip
    for name, questions in told.items():
        lines = [
            json.dumps({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Let me see."}]})
            for text in questions
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    report = import_seeds({name: tmp_path / f"{name}.jsonl" for name in told}, tmp_path / "seeds")
    assert report.rows == 4
    return tmp_path / "seeds"


def items_file(path, *items):
    rows = [dict(zip(EVAL_ITEMS.names, item, strict=True)) for item in items]
    pq.write_table(pa.Table.from_pylist(rows, schema=EVAL_ITEMS), path)
    return path


def test_a_seed_that_holds_an_item_leaves_and_is_named(seeds, tmp_path):
    before = pq.read_table(seeds / "seeds.parquet")
    items = items_file(tmp_path / "items.parquet", ("quiz", "7", QUESTION, None))
    assert drop_contaminated_seeds(seeds, items, Decontamination()) == {"handmade": 1}
    after = pq.read_table(seeds / "seeds.parquet")
    named = pq.read_table(seeds / "contaminated_seeds.parquet").to_pylist()
    assert [(row["source"], row["source_row"], row["suite"], row["item_id"]) for row in named] == [("handmade", 2, "quiz", "7")]
    assert after.schema == before.schema
    assert after.to_pylist() == [row for row in before.to_pylist() if row["row_id"] != named[0]["row_id"]]


@pytest.mark.parametrize("enabled", [True, False])
def test_clean_seeds_stay_byte_for_byte(seeds, tmp_path, enabled):
    before = (seeds / "seeds.parquet").read_bytes()
    question = "Nobody ever asked this question in any of the seeds at all" if enabled else QUESTION
    items = items_file(tmp_path / "items.parquet", ("quiz", "7", question, None))
    assert drop_contaminated_seeds(seeds, items, Decontamination(enabled=enabled)) == {}
    assert (seeds / "seeds.parquet").read_bytes() == before
    assert drop_contaminated_seeds(seeds, items_file(tmp_path / "none.parquet"), Decontamination()) == {}
