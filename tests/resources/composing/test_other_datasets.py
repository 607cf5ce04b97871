"""Prompts with verifiers, calibration rows."""

import hashlib
import json

import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, example, row, seeds
from interaction_rows import days_of, interaction, store

from resources.composing.calibration import build_calibration
from resources.composing.dataset_settings import (
    CalibrationSettings,
    DatasetError,
    DatasetSettings,
    NamedDataset,
    RlPromptSettings,
)
from resources.composing.eval_suite import EvalSettings, EvalSuiteError, build_eval_suite
from resources.composing.rl_prompts import build_rl_prompts
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings, Decontamination

ALL = DatasetSettings(test_share=0, validation_share=0)


def cleaned(tables, rows):
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())


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
    task = {"id": 1, "question": "add two\u2028and two", "kind": "number", "answer": "#### 4", "ground_truth": "4"}
    assert json.loads(found["task:sums:1"]["verifier"]) == task
    assert (counts["repeated"], counts["contradictory"]) == (1, 0)
    assert counts["notes"] == ["1 prompt left out, because they stand elsewhere too"]
    assert json.loads(found["task:sums:1"]["messages"])[-1]["content"] == "add two\u2028and two"
    assert not (tmp_path / "r" / "tasks.jsonl").exists()
    line = {"messages": [{"role": "user", "content": "play"}], "env": {"taskset": {"id": "x"}}, "task": {"answer": None}}
    (tmp_path / "records.jsonl").write_text(json.dumps(line))
    settings = RlPromptSettings(tasks={"x": EvalSettings(uri=str(tmp_path / "records.jsonl"), task="record")})
    items = tmp_path / "suite" / "items.parquet"
    build_rl_prompts(tables, "none", tmp_path / "records", settings, ALL, items, Decontamination())
    [row] = pq.read_table(tmp_path / "records" / "train.parquet").to_pylist()
    assert json.loads(row["messages"]) == line.pop("messages")
    assert json.loads(row["verifier"]) == {"kind": "record", "record": line}
    settings = RlPromptSettings(tasks={"x": EvalSettings(uri=str(tmp_path / "records.jsonl"))})
    with pytest.raises(EvalSuiteError, match="nothing that verifies an answer as `task: auto`; set `task`"):
        build_rl_prompts(tables, "none", tmp_path / "auto", settings, ALL, items, Decontamination())
    with pytest.raises(DatasetError, match="no prompt with data to verify an answer for training"):
        build_rl_prompts(
            tables, "other", tmp_path / "s", RlPromptSettings(), ALL, tmp_path / "suite" / "items.parquet", Decontamination()
        )


def test_tasks_that_contradict_each_other_are_left_out_and_records_of_one_prompt_are_not(tables, tmp_path):
    build_eval_suite({}, tmp_path / "suite")

    def made(name, lines, **settings):
        put = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(put)
        asked = RlPromptSettings(tasks={name: EvalSettings(uri=str(tmp_path / f"{name}.jsonl"), **settings)})
        items = tmp_path / "suite" / "items.parquet"
        counts = build_rl_prompts(tables, "tutor", tmp_path / f"of-{name}", asked, ALL, items, Decontamination())
        return counts, pq.read_table(tmp_path / f"of-{name}" / "train.parquet").to_pylist()

    answers = ["#### 4", "two and two\n#### 4.0", "7", "8", "9"]
    questions = ["2 + 2", "2 + 2", "3 + 4", "3 + 4", "4 + 5"]
    lines = [{"id": n, "question": q, "answer": a, "level": n} for n, (q, a) in enumerate(zip(questions, answers, strict=True))]
    counts, rows = made("sums", lines, task="number")
    assert {each["row_id"] for each in rows} == {"task:sums:0", "task:sums:4"}
    assert (counts["repeated"], counts["contradictory"]) == (1, 2)
    assert counts["notes"][1].endswith("another answer: task:sums:2, task:sums:3")
    assert "task:sums:2" in (tmp_path / "of-sums/README.md").read_text()
    assert {json.loads(each["verifier"])["level"] for each in rows} == {0, 4}
    counts, rows = made("games", [{"prompt": "play", "seed": seed % 3} for seed in range(4)], task="record")
    assert sorted(json.loads(each["verifier"])["record"]["seed"] for each in rows) == [0, 1, 2] and counts["repeated"] == 1


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
    assert chosen.schema.names == pq.read_schema(tmp_path / "d" / "train.parquet").names
    assert (tmp_path / "k" / "rendering.json").exists()
    [note] = build_calibration(tmp_path / "d", tmp_path / "l", CalibrationSettings(rows=900))["notes"]
    assert note.startswith("datasets.calibration asks for 900 rows, and sft_dataset has")


SFT = DatasetSettings(test_share=0.3, validation_share=0.2, mix={"gateway": 1})


def build(tmp_path, name, named, path, seed_file=None, lent=None):
    return built(
        path,
        tmp_path / name,
        named.as_dataset(SFT),
        seed_file,
        lent_before=lent,
        only=named.only,
        about={"name": name, "key": f"datasets.named.{name}"},
    )


def scored(number, **more):
    return row(number, f"question {number}", f"answer {number}", day=number % 4, quality=float(1 + number % 10), **more)


@pytest.fixture
def path(tmp_path):
    return curated(tmp_path / "c.parquet", [scored(n, language="de" if n % 3 else "en") for n in range(80)])


def test_a_named_dataset_trains_on_the_rows_it_asks_for_and_holds_out_what_sft_dataset_holds_out(tmp_path, path):
    _, all_rows = built(path, tmp_path / "sft", SFT)
    report, found = build(tmp_path, "best", NamedDataset(min_quality=8, languages=["de"]), path)
    held = {each["row_id"]: each["split"] for each in all_rows if each["split"] != "train"}
    assert {each["row_id"]: each["split"] for each in found if each["split"] != "train"} == held
    wanted = {
        each["row_id"] for each in all_rows if each["split"] == "train" and each["quality"] >= 8 and each["language"] == "de"
    }
    assert wanted and {each["row_id"] for each in found if each["split"] == "train"} == wanted
    left_out = len(all_rows) - len(held) - len(wanted)
    assert report.by_rule["below_min_quality"] + report.by_rule["language_not_asked_for"] == left_out
    card = (tmp_path / "best" / "README.md").read_text()
    assert "# best" in card and '"min_quality": 8' in card


def test_a_copy_of_a_held_out_row_stays_out_even_if_the_held_out_row_misses_the_bounds(tmp_path):
    rows = [scored(n) for n in range(60)]
    _, all_rows = built(curated(tmp_path / "a.parquet", rows), tmp_path / "a", SFT)
    test = next(each for each in all_rows if each["split"] == "test")
    train = next(each for each in all_rows if each["split"] == "train" and each["quality"] > test["quality"])
    number = int(test["row_id"][1:])
    copied = [
        scored(int(train["row_id"][1:]), messages=rows[number]["messages"], completion=rows[number]["completion"])
        if each["interaction_id"] == train["row_id"]
        else each
        for each in rows
    ]
    named = NamedDataset(min_quality=test["quality"] + 0.5)
    report, found = build(tmp_path, "best", named, curated(tmp_path / "b.parquet", copied))
    assert train["row_id"] not in {each["row_id"] for each in found if each["split"] == "train"}
    assert report.by_rule["shares_turns_with_held_out"] == 1


def test_its_mixture_may_take_seeds_that_sft_dataset_leaves_out(tmp_path, path):
    seed_file = seeds(tmp_path / "s", [example(f"seed {n}?", f"seeded {n}") for n in range(6)])
    named = NamedDataset(mix={"handmade": 1, "gateway": {"rows": 4}}, first_day="2026-06-02", last_day="2026-06-03")
    _, found = build(tmp_path, "mixed", named, path, seed_file)
    train = [each for each in found if each["split"] == "train"]
    assert sorted({(each["source"], each["origin"]) for each in train}) == [("gateway", "interaction"), ("handmade", "seed")]
    assert len(train) == 10 and {each["ts"].day for each in train if each["ts"]} <= {2, 3}


def test_what_sft_dataset_borrowed_for_a_split_is_held_out_too(tmp_path):
    path = curated(tmp_path / "c.parquet", [scored(n) for n in range(5)])
    report, all_rows = built(path, tmp_path / "sft", DatasetSettings())
    named = NamedDataset(min_quality=2)
    found = built(path, tmp_path / "best", named.as_dataset(DatasetSettings()), lent_before=report.lent, only=named.only)[1]

    def held(rows):
        return {each["row_id"]: each["split"] for each in rows if each["split"] != "train"}

    assert report.lent and held(found) == held(all_rows)
    assert "i0" not in {each["row_id"] for each in pq.read_table(tmp_path / "best" / "train.parquet").to_pylist()}


@pytest.mark.parametrize(("mix", "said"), [
    ({}, r"no training rows: datasets\.named\.early\.last_day \(2025-06-01\) leaves out \d+ rows of traffic, and no other row " "is for training; change the bound"),
    (
            {"gateway": 1},
            r"mix takes rows of gateway, which have none left: datasets\.named\.early\.last_day \(2025-06-01\) leaves out "
            r"\d+ rows of traffic; change the bound, or add a source that has some: handmade \(6\)",
        ),
])  # fmt: skip
def test_a_bound_that_leaves_no_row_is_named(tmp_path, path, mix, said):
    seed_file = seeds(tmp_path / "s", [example(f"seed {n}?", f"seeded {n}") for n in range(6)]) if mix else None
    with pytest.raises(DatasetError, match=said):
        build(tmp_path, "early", NamedDataset(mix=mix, last_day="2025-06-01"), path, seed_file)


def test_days_out_of_order_are_refused():
    with pytest.raises(ValueError, match="last_day 2026-06-01 is before first_day 2026-06-02; change one of them"):
        NamedDataset(first_day="2026-06-02", last_day="2026-06-01")
