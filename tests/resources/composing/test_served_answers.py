"""What the log says of how an answer was served; token ids never bring back what redaction took out."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interaction_rows import days_of, interaction, store

from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.composing.served_answers import SERVED, build_served_answers
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

LOGGED = {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5], "served_model_digest": "ab" * 32,
    "params": json.dumps({"temperature": 0.7})}  # fmt: skip


def test_ids_and_parameters_of_the_answers_that_are_learnt(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [interaction(1, "How deep is the mill pond behind the weir?", "About two metres in spring.", **LOGGED),
        interaction(2, "Write to ada.lovelace@example.com about the wheel", "Dear Ada, the wheel turns again.", **LOGGED),
        interaction(3, "Name three kinds of flour that bakers use", "Rye, wheat and spelt are common.",
            params='{"top_p": 0.9}'),
        interaction(4, "Which horse pulls the baker's cart?", "", **LOGGED)]  # fmt: skip
    rows += [
        interaction(number, f"Tell me story number {number} of the river", f"Once upon a time {number} boats came by.")
        for number in range(5, 30)
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    curate(tables, "tutor", tmp_path / "curated", CurationSettings(near_duplicates={"enabled": False}), None)
    (tmp_path / "dataset").mkdir()
    build_sft_dataset(tmp_path / "curated" / "curated.parquet", None, tmp_path / "dataset",
        DatasetSettings(test_share=0.0, validation_share=0.1))  # fmt: skip
    (tmp_path / "served").mkdir()
    report = build_served_answers(tables, "tutor", [tmp_path / "dataset"], tmp_path / "served")
    table = pq.read_table(tmp_path / "served" / "served.parquet")
    assert table.schema.equals(SERVED)
    found = {row["interaction_id"]: row for row in table.to_pylist()}
    assert found["i1"]["prompt_token_ids"] == [1, 2, 3] and found["i1"]["completion_token_ids"] == [4, 5]
    assert found["i1"]["served_model_digest"] == "ab" * 32 and json.loads(found["i1"]["params"]) == {"temperature": 0.7}
    assert found["i2"]["prompt_token_ids"] is None and found["i2"]["completion_token_ids"] is None, "an address is in them"
    assert json.loads(found["i2"]["params"]) == {"temperature": 0.7}
    assert found["i3"]["prompt_token_ids"] is None and "i4" not in found, "an empty answer is learnt by nobody"
    assert report == {"answers": len(found), "with_token_ids": 1, "with_digest": 2, "ids_miscounted": 0} and len(found) == 28


def served(tmp_path, rows, curation):
    """served.parquet by interaction, and the report, of rows that are all learnt."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), curation)
    (tmp_path / "dataset").mkdir()
    pq.write_table(
        pa.Table.from_pylist([{"origin": "interaction", "interaction_ids": [row["interaction_id"]]} for row in rows]),
        tmp_path / "dataset" / "train.parquet",
    )
    (tmp_path / "served").mkdir()
    report = build_served_answers(tables, "tutor", [tmp_path / "dataset"], tmp_path / "served")
    return {row["interaction_id"]: row for row in pq.read_table(tmp_path / "served" / "served.parquet").to_pylist()}, report


@pytest.mark.parametrize("pii", ["redact", "keep"])
def test_ids_of_thoughts_that_hold_personal_data_are_left_out(tmp_path, pii):
    """What was thought is in the ids, and in neither messages nor answer."""
    rows = [
        interaction(1, "Who minds the weir?", "The weir keeper does.", **LOGGED, reasoning='The user means "Ada",\nada.lovelace@example.com, I think.'),
        interaction(2, "Who minds the sluice?", "The sluice keeper does.", **LOGGED, reasoning="A sluice has a keeper."),
        interaction(3, "Who minds the boat?", "The ferryman does.", **LOGGED),
    ]  # fmt: skip
    found, report = served(tmp_path, rows, CurationSettings(pii=pii))
    assert {name: row["completion_token_ids"] for name, row in found.items()} == {"i1": None if pii == "redact" else [4, 5],
        "i2": [4, 5], "i3": [4, 5]}  # fmt: skip
    assert found["i1"]["params"] and report["with_token_ids"] == (2 if pii == "redact" else 3)


def test_ids_are_exact_only_where_they_are_as_many_as_the_server_counted(tmp_path):
    counted = {"prompt_tokens": 3, "completion_tokens": 2}
    rows = [
        interaction(1, "one", "first answer", **LOGGED, **counted),
        interaction(2, "two", "second answer", **LOGGED, prompt_tokens=2, completion_tokens=2),
        interaction(3, "three", "third answer", **LOGGED, prompt_tokens=3, completion_tokens=1),
        interaction(4, "four", "fourth answer", **LOGGED, prompt_tokens=3, completion_tokens=9),
        # two choices of one request, whose count is of both
        interaction(5, "five", "fifth answer", **LOGGED, prompt_tokens=3, completion_tokens=4, request_id="both"),
        interaction(
            6, "five", "sixth answer", **LOGGED, prompt_tokens=3, completion_tokens=4, request_id="both", choice_index=1
        ),
    ]
    found, report = served(tmp_path, rows, CurationSettings())
    assert [name for name, row in sorted(found.items()) if row["prompt_token_ids"]] == ["i1", "i5", "i6"]
    assert report["ids_miscounted"] == 3 and report["with_token_ids"] == 3


def test_ids_and_parameters_alone_renew_what_is_made_of_them(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [interaction(1, "one", "first answer"), interaction(2, "two", "second answer")]
    store(tables, "interactions", rows)
    before = slice_digest(tables, "interactions", "tutor", as_served=True)
    plain = slice_digest(tables, "interactions", "tutor")
    for change in ({"params": '{"temperature": 0.2}'}, {"completion_token_ids": [4, 5]}, {"served_model_digest": "ab" * 32}):
        store(tables, "interactions", [{**rows[0], **change}, rows[1]])
        assert slice_digest(tables, "interactions", "tutor") == plain
        assert slice_digest(tables, "interactions", "tutor", as_served=True) != before
    store(tables, "interactions", rows[::-1])
    assert slice_digest(tables, "interactions", "tutor", as_served=True) == before
