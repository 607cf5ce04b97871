"""Preference pairs, prompts with verifiers, calibration rows."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, row
from interaction_rows import days_of, interaction, store, thumb

from resources.composing.calibration import build_calibration
from resources.composing.dataset_settings import (
    CalibrationSettings,
    DatasetError,
    DatasetSettings,
    PreferenceSettings,
    RlPromptSettings,
)
from resources.composing.eval_suite import EvalSettings, build_eval_suite
from resources.composing.preferences import build_preferences
from resources.composing.rl_prompts import build_rl_prompts
from resources.composing.teachers.teacher_answers import PREFERENCES
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings, Decontamination
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

ALL = DatasetSettings(test_share=0, validation_share=0)


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


def cleaned(tables, rows, feedback=()):
    store(tables, "interactions", rows)
    if feedback:
        store(tables, "feedback", list(feedback))
    clean(tables, "tutor", days_of(rows), CurationSettings())


def said(text):
    return {"role": "assistant", "content": text}


def asked(text):
    return {"role": "user", "content": text}


def pairs(output):
    found = {}
    for split in ("train", "validation", "test"):
        for each in pq.read_table(output / f"{split}.parquet").to_pylist():
            found[each["rejected_id"] or each["row_id"]] = each
    return found


def test_pairs_of_ratings_regenerations_edits_and_a_teacher(tables, tmp_path):
    rows = [
        interaction(1, "rate me", "the good answer", session_id="a"),
        interaction(2, "rate me", "the bad answer", session_id="b"),
        interaction(3, "again", "first try", session_id="c"),
        interaction(4, "again", "second try", session_id="c", minutes=1),
        interaction(5, [asked("again"), said("second try"), asked("more")], "and so on", session_id="c", minutes=2),
        interaction(6, "write", "my draft of it", session_id="d"),
        interaction(7, [asked("write"), said("what a person made of it"), asked("more")], "fine", session_id="d", minutes=1),
        interaction(8, "cut", "a long answer that a client cuts", session_id="e"),
        interaction(9, [asked("cut"), said("a long answer"), asked("more")], "fine too", session_id="e", minutes=1),
        interaction(10, "alone", "rated and without another answer", session_id="f"),
    ]
    cleaned(tables, rows, [thumb(1, interaction_id="i1"), thumb(-1, interaction_id="i2"), thumb(-1, interaction_id="i10")])
    teacher = tmp_path / "preferences.parquet"
    pq.write_table(
        pa.Table.from_pylist(
            [
                {
                    "row_id": "i9",
                    "interaction_ids": ["i9"],
                    "source": "gateway",
                    "session_id": "e",
                    "prompt": "[]",
                    "tools": None,
                    "chosen": json.dumps([said("right")]),
                    "rejected": json.dumps([said("wrong")]),
                    "chosen_score": 1.0,
                    "rejected_score": 0.0,
                }
            ],
            schema=PREFERENCES,
        ),
        teacher,
    )
    counts = build_preferences(tables, "tutor", tmp_path / "p", PreferenceSettings(), ALL, "none", teacher=teacher)
    found = pairs(tmp_path / "p")
    assert {name: each["reason"] for name, each in found.items() if name.startswith("i")} == {
        "i2": "rated",
        "i3": "regenerated",
        "i6": "edited",
    }
    assert [json.loads(found[name]["chosen"])[0]["content"] for name in ("i2", "i3", "i6")] == [
        "the good answer",
        "second try",
        "what a person made of it",
    ]
    assert json.loads(found["i6"]["rejected"]) == [said("my draft of it")] and json.loads(found["i2"]["prompt"]) == [
        asked("rate me")
    ]
    assert found["i2"]["interaction_ids"] == ["i1", "i2"] and found["i6"]["interaction_ids"] == ["i6"]
    [taught] = [each for each in found.values() if each["origin"] == "teacher"]
    assert taught["synthetic"] and taught["reason"] == "teacher" and counts["rows"] == {"train": 4, "validation": 0, "test": 0}
    assert "split: train" in (tmp_path / "p" / "README.md").read_text()
    with pytest.raises(DatasetError, match="no pair of a better and a worse answer for training"):
        build_preferences(
            tables,
            "tutor",
            tmp_path / "q",
            PreferenceSettings(min_difference=3),
            ALL.model_copy(update={"test_share": 0.99}),
            "none",
        )


def test_a_pair_of_two_sessions_is_in_the_more_protected_split(tables, tmp_path):
    rows = []
    for n in range(40):
        rows += [
            interaction(f"g{n}", f"question {n}", "good answer", session_id=f"g{n}", user_hash=f"u{n}"),
            interaction(f"b{n}", f"question {n}", "bad answer", session_id=f"b{n}", user_hash=f"v{n}"),
        ]
    cleaned(
        tables,
        rows,
        [each for n in range(40) for each in (thumb(1, interaction_id=f"ig{n}"), thumb(-1, interaction_id=f"ib{n}"))],
    )
    spec = DatasetSettings(test_share=0.3, validation_share=0.1)
    build_preferences(tables, "tutor", tmp_path / "p", PreferenceSettings(), spec, "none")
    _, sft = built(
        curated(
            tmp_path / "c.parquet",
            [
                row(
                    f"{side}{n}",
                    f"{side} question {n}",
                    f"{side} {n}",
                    session_id=f"{side}{n}",
                    user_hash=f"{'u' if side == 'g' else 'v'}{n}",
                )
                for n in range(40)
                for side in "gb"
            ],
        ),
        tmp_path / "d",
        spec,
    )
    splits = {each["session_id"]: each["split"] for each in sft}
    order = ("test", "validation", "train")
    found = pairs(tmp_path / "p")
    assert len(found) == 40 and {each["split"] for each in found.values()} == set(order)
    for n in range(40):
        assert found[f"ib{n}"]["split"] == min(splits[f"g{n}"], splits[f"b{n}"], key=order.index)


def test_prompts_with_verifiers_from_logs_and_files_without_evaluation_items(tables, tmp_path):
    rows = [
        interaction(
            1,
            "what is six times seven in the usual way of counting",
            "",
            status="prompt",
            completion=None,
            params=json.dumps({"item": {"reference_answer": "42"}}),
        ),
        interaction(2, "no verifier", "", status="prompt", completion=None),
        interaction(3, "answered", "yes"),
    ]
    cleaned(tables, rows)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(
            json.dumps({"id": n, "question": question, "answer": "#### 4"}, ensure_ascii=False) + "\n"
            for n, question in (
                (1, "add two\u2028and two"),
                (2, "how many legs has the dog of the neighbour of the miller"),
                (3, "add two\u2028and two"),
            )
        )
    )
    (tmp_path / "evals.jsonl").write_text(
        json.dumps({"question": "how many legs has the dog of the neighbour of the miller", "answer": "4"})
    )
    build_eval_suite({"e": EvalSettings(uri=str(tmp_path / "evals.jsonl"))}, tmp_path / "suite")
    settings = RlPromptSettings(tasks={"sums": EvalSettings(uri=str(tmp_path / "tasks.jsonl"), task="number")})
    counts = build_rl_prompts(
        tables, "tutor", tmp_path / "r", settings, ALL, tmp_path / "suite" / "items.parquet", Decontamination()
    )
    found = {each["row_id"]: each for each in pq.read_table(tmp_path / "r" / "train.parquet").to_pylist()}
    assert set(found) == {"i1", "task:sums:1"} and counts["contaminated"] == 1
    assert json.loads(found["i1"]["verifier"]) == {"reference_answer": "42"} and found["i1"]["interaction_ids"] == ["i1"]
    assert json.loads(found["task:sums:1"]["verifier"]) == {"kind": "number", "answer": "#### 4"}
    assert json.loads(found["task:sums:1"]["messages"])[-1]["content"] == "add two\u2028and two"
    assert not (tmp_path / "r" / "tasks.jsonl").exists()
    with pytest.raises(DatasetError, match="no prompt with data to verify an answer for training"):
        build_rl_prompts(
            tables, "other", tmp_path / "s", RlPromptSettings(), ALL, tmp_path / "suite" / "items.parquet", Decontamination()
        )


def test_a_session_that_strata_lend_to_a_held_out_split_gives_no_prompt_to_train_on(tables, tmp_path):
    cleaned(
        tables,
        [
            interaction(
                n,
                f"what is {n} times seven in the usual way",
                "",
                status="prompt",
                completion=None,
                session_id=f"s{n}",
                params=json.dumps({"item": {"reference_answer": "42"}}),
            )
            for n in range(6)
        ],
    )
    spec = ALL.model_copy(update={"test_share": 1e-6, "validation_share": 1e-6})
    lent = {"test": [hashlib.md5(b"0:s1").hexdigest()], "validation": [hashlib.md5(b"0:s4").hexdigest()]}
    build_eval_suite({}, tmp_path / "suite")
    counts = build_rl_prompts(
        tables,
        "tutor",
        tmp_path / "r",
        RlPromptSettings(),
        spec,
        tmp_path / "suite" / "items.parquet",
        Decontamination(enabled=False),
        lent=lent,
    )
    assert counts["rows"] == {"train": 4, "validation": 1, "test": 1}
    (held,) = pq.read_table(tmp_path / "r" / "test.parquet").to_pylist()
    assert (held["session_id"], held["split"], held["reason"]) == ("s1", "test", "held_out")


def test_calibration_takes_training_rows_of_every_shape(tmp_path):
    rows = [row(n, f"question {n}", f"answer {n}", prompt_shape="rare" if n < 6 else "frequent") for n in range(100)]
    _, found = built(
        curated(tmp_path / "c.parquet", rows), tmp_path / "d", DatasetSettings(test_share=0.3, validation_share=0.1)
    )
    counts = build_calibration(tmp_path / "d", tmp_path / "k", CalibrationSettings(rows=8))
    chosen = pq.read_table(tmp_path / "k" / "train.parquet")
    shapes = chosen["prompt_shape"].to_pylist()
    rare = sum(each["split"] == "train" and each["prompt_shape"] == "rare" for each in found)
    assert len(shapes) == 8 and shapes.count("rare") == min(4, rare) and counts["notes"] == []
    assert set(chosen["row_id"].to_pylist()) <= {each["row_id"] for each in found if each["split"] == "train"}
    assert (
        chosen.schema.names == pq.read_schema(tmp_path / "d" / "train.parquet").names
        and (tmp_path / "k" / "rendering.json").exists()
    )
    [note] = build_calibration(tmp_path / "d", tmp_path / "l", CalibrationSettings(rows=900))["notes"]
    assert note.startswith("datasets.calibration asks for 900 rows, and sft_dataset has")
