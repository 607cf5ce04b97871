"""Named datasets: their own mixture and choice of rows, and the held-out rows of sft_dataset."""

import pyarrow.parquet as pq
import pytest
from curated_rows import built, curated, example, row, seeds

from resources.composing.dataset_settings import DatasetError, DatasetSettings, NamedDataset

SFT = DatasetSettings(test_share=0.3, validation_share=0.2, mix={"gateway": 1})


def build(tmp_path, name, named, path, seed_file=None, lent=None):
    return built(path, tmp_path / name, named.as_dataset(SFT), seed_file, lent_before=lent, only=named.only,
        about={"name": name, "key": f"datasets.named.{name}"})  # fmt: skip


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
