"""Seeds from other datasets of the lake, ids of examples, tokenizers, and what is refused in words."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, example, row, seeds
from pydantic import ValidationError

from resources.composing.dataset_settings import DatasetError, DatasetSettings, SeedSettings
from resources.composing.seeds import SeedError, drop_contaminated_seeds, import_seeds
from resources.curating.curation import Decontamination
from resources.curating.decontamination import EVAL_ITEMS

ALL = DatasetSettings(test_share=0.3, validation_share=0.1)


def test_training_rows_of_another_dataset_become_seeds_with_their_interactions(tmp_path):
    rows = [row(n, f"question {n}", f"answer {n}") for n in range(40)]
    report, old = built(
        curated(tmp_path / "c.parquet", rows), tmp_path / "old", ALL, seeds(tmp_path, [example("seed", "told")], synthetic=True)
    )
    found = import_seeds({"old": SeedSettings(dataset="past/sft_dataset")}, tmp_path / "new", {"old": tmp_path / "old"})
    taken = pq.read_table(tmp_path / "new" / "seeds.parquet").to_pylist()
    assert found.rows == report.rows["train"] == len(taken)
    assert {name for each in taken for name in each["interaction_ids"]} == {
        each["row_id"] for each in old if each["split"] == "train" and each["origin"] == "interaction"
    }
    assert [each["synthetic"] for each in taken].count(True) == 1 and {each["source"] for each in taken} == {"old"}
    later = [row(n, f"other {n}", f"more {n}") for n in range(100, 120)]
    both, mixed = built(
        curated(tmp_path / "d.parquet", [*later, *rows[:5]]), tmp_path / "mixed", ALL, tmp_path / "new" / "seeds.parquet"
    )
    again = {each["row_id"] for each in mixed if each["origin"] == "interaction"} & {f"i{n}" for n in range(5)}
    assert len(again) == 5 and both.by_rule["duplicate_of_traffic"] == sum(
        each["split"] == "train" for each in old if each["row_id"] in again
    ), "an interaction is learnt once"


def test_a_dataset_without_conversations_is_refused(tmp_path):
    with pytest.raises(
        SeedError, match=r"seeds old: past/length_report has no training rows of conversations; name an sft_dataset"
    ):
        import_seeds({"old": SeedSettings(dataset="past/length_report")}, tmp_path, {"old": tmp_path})


def test_two_examples_with_one_id_are_refused_and_a_copy_is_not(tmp_path):
    same = [example("one", "two", id="x"), example("one", "two", id="x"), example("three", "four", id="y")]
    assert pq.read_table(seeds(tmp_path / "a", same)).num_rows == 2
    with pytest.raises(
        SeedError, match=r"seeds handmade: records 1 and 3 of .*handmade.jsonl have the same id and different content"
    ):
        seeds(tmp_path / "b", [same[0], same[2], example("one", "else", id="x")])
    assert not (tmp_path / "b" / "seeds").exists()


def test_the_tokenizer_of_token_ids_is_kept_with_the_rows(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    path = seeds(tmp_path, [{"input_ids": [0, 1, 1], "labels": [-100, 1, 1]}], tokenizer=str(tmp_path / "tokenizer"))
    stated = json.loads((path.parent / "tokenizers.json").read_text())
    assert list(stated) == ["handmade"] and len(stated["handmade"]) == 64
    rows = [row(n, f"question {n}", f"answer {n}") for n in range(10)]
    built(curated(tmp_path / "c.parquet", rows), tmp_path / "d", ALL, path)
    assert json.loads((tmp_path / "d" / "tokenizers.json").read_text()) == stated
    with pytest.raises(SeedError, match="there is no tokenizer in"):
        seeds(tmp_path, [example("q", "a")], tokenizer=str(tmp_path / "none"))


def test_a_strict_mix_refuses_what_is_not_there_before_anything_is_written(tmp_path):
    path = curated(tmp_path / "c.parquet", [row(n, f"q {n}", f"a {n}") for n in range(20)])
    wish = DatasetSettings(mix={"gateway": 1, "handmade": {"rows": 9}}, strict=True)
    with pytest.raises(
        DatasetError, match="mix asks for 9 rows of handmade, which has 2 rows for training; nothing was made: ask for less"
    ):
        built(path, tmp_path / "d", wish, seeds(tmp_path, [example("x", "y"), example("z", "w")]))
    assert list((tmp_path / "d").iterdir()) == []
    report, _ = built(path, tmp_path / "e", wish.model_copy(update={"strict": False}), tmp_path / "seeds" / "seeds.parquet")
    assert len(report.notes) == 1 and report.sources["handmade"] == 2


@pytest.mark.parametrize(("asked", "said"), [
    (
        {"limits": {"gateway": {"max_rows": 0}, "handmade": {"max_rows": 0}}},
        r"the bounds of datasets.sft \(limits, max_synthetic_share\) leave none of those that there are: gateway \(\d+\), handmade \(1\); raise a bound",
    ),
    ({"mix": {"thumbs": 1}}, r"datasets.sft.mix takes rows of thumbs, which have none; add a source that has some: gateway"),
])  # fmt: skip
def test_a_dataset_without_training_rows_says_what_to_change(tmp_path, asked, said):
    path = curated(tmp_path / "c.parquet", [row(n, f"q {n}", f"a {n}") for n in range(20)])
    with pytest.raises(DatasetError, match=f"^no training rows: {said}"):
        built(path, tmp_path / "d", DatasetSettings(**asked), seeds(tmp_path, [example("x", "y")]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "give uri"),
        ({"uri": "a", "dataset": "b/c"}, "not both"),
        ({"uri": "a", "version": "0" * 12}, "version belongs to dataset"),
        ({"dataset": "sft_dataset"}, "dataset"),
        ({"dataset": "a/b", "version": "latest"}, "version"),
    ],
)
def test_a_seed_has_one_place(wrong, said):
    with pytest.raises(ValidationError, match=said):
        SeedSettings(**wrong)


QUESTION = "How many loaves does the baker sell on a market day when each cart brings forty sacks of flour to the mill"


@pytest.fixture
def four_seeds(tmp_path):
    told = {
        "handmade": ["What is a mill?", f"Dear friend, {QUESTION.upper()}?", "What is a wheel?"],
        "synthetic": ["Why does bread rise?"],
    }
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


def test_a_seed_that_holds_an_item_leaves_and_is_named(four_seeds, tmp_path):
    before = pq.read_table(four_seeds / "seeds.parquet")
    items = items_file(tmp_path / "items.parquet", ("quiz", "7", QUESTION, None))
    assert drop_contaminated_seeds(four_seeds, items, Decontamination()) == {"handmade": 1}
    after = pq.read_table(four_seeds / "seeds.parquet")
    named = pq.read_table(four_seeds / "contaminated_seeds.parquet").to_pylist()
    assert [(row["source"], row["source_row"], row["suite"], row["item_id"]) for row in named] == [("handmade", 2, "quiz", "7")]
    assert after.schema == before.schema
    assert after.to_pylist() == [row for row in before.to_pylist() if row["row_id"] != named[0]["row_id"]]


@pytest.mark.parametrize("enabled", [True, False])
def test_clean_seeds_stay_byte_for_byte(four_seeds, tmp_path, enabled):
    before = (four_seeds / "seeds.parquet").read_bytes()
    question = "Nobody ever asked this question in any of the seeds at all" if enabled else QUESTION
    items = items_file(tmp_path / "items.parquet", ("quiz", "7", question, None))
    assert drop_contaminated_seeds(four_seeds, items, Decontamination(enabled=enabled)) == {}
    assert (four_seeds / "seeds.parquet").read_bytes() == before
    assert drop_contaminated_seeds(four_seeds, items_file(tmp_path / "none.parquet"), Decontamination()) == {}
