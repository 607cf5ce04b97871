"""What the log says of how an answer was served; token ids never bring back what redaction took out."""

import json

import pyarrow.parquet as pq
from interaction_rows import days_of, interaction, store

from resources.clean import clean
from resources.curate import curate
from resources.curation import CurationSettings
from resources.datasets import DatasetSettings, build_sft_dataset
from resources.lake import Lake
from resources.served_answers import SERVED, build_served_answers
from resources.tables import Tables

LOGGED = {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5], "served_model_digest": "ab" * 32,
          "params": json.dumps({"temperature": 0.7})}


def test_ids_and_parameters_of_the_answers_that_are_learnt(tmp_path):
    tables = Tables(Lake.open(tmp_path / "lake"))
    rows = [
        interaction(1, "How deep is the mill pond behind the weir?", "About two metres in spring.", **LOGGED),
        interaction(2, "Write to ada.lovelace@example.com about the wheel", "Dear Ada, the wheel turns again.", **LOGGED),
        interaction(3, "Name three kinds of flour that bakers use", "Rye, wheat and spelt are common.", params='{"top_p": 0.9}'),
        interaction(4, "Which horse pulls the baker's cart?", "", **LOGGED),
    ]
    rows += [interaction(number, f"Tell me story number {number} of the river", f"Once upon a time {number} boats came by.")
             for number in range(5, 30)]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    curate(tables, "tutor", tmp_path / "curated", CurationSettings(near_duplicates={"enabled": False}), None)
    (tmp_path / "dataset").mkdir()
    build_sft_dataset(tmp_path / "curated" / "curated.parquet", None, tmp_path / "dataset",
                      DatasetSettings(test_share=0.0, validation_share=0.1))
    (tmp_path / "served").mkdir()
    report = build_served_answers(tables, "tutor", tmp_path / "dataset", tmp_path / "served")
    table = pq.read_table(tmp_path / "served" / "served.parquet")
    assert table.schema.equals(SERVED)
    found = {row["interaction_id"]: row for row in table.to_pylist()}
    assert found["i1"]["prompt_token_ids"] == [1, 2, 3] and found["i1"]["completion_token_ids"] == [4, 5]
    assert found["i1"]["served_model_digest"] == "ab" * 32 and json.loads(found["i1"]["params"]) == {"temperature": 0.7}
    assert found["i2"]["prompt_token_ids"] is None and found["i2"]["completion_token_ids"] is None, "an address is in them"
    assert json.loads(found["i2"]["params"]) == {"temperature": 0.7}
    assert found["i3"]["prompt_token_ids"] is None and "i4" not in found, "an empty answer is learnt by nobody"
    assert report == {"answers": len(found), "with_token_ids": 1, "with_digest": 2} and len(found) == 28
