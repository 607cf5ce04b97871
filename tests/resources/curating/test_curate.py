"""The one pass over all days: each rule, each row's one decision, and independence of the order of days."""

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interaction_rows import days_of, interaction, read, store, thumb

from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.decontamination import EVAL_ITEMS
from resources.curating.record_counts import CountsError, RecordCounts
from resources.curating.selection import CurationError, curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.manifests.manifest import Manifest

WORDS = [
    "river", "stone", "mill", "wheel", "grain", "flour", "baker", "oven", "bread", "market", "road", "cart", "horse", "rider",
    "letter", "king", "tower", "bell",
]  # fmt: skip


def prose(seed, words=60):
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def curated(tables, rows, output, settings=None, feedback=(), items=None):
    settings = settings or CurationSettings()
    store(tables, "interactions", rows)
    if feedback:
        store(tables, "feedback", list(feedback))
    clean(tables, "tutor", days_of(rows), settings)
    report = curate(tables, "tutor", output, settings, items)
    decisions = {row["interaction_id"]: row for row in read(tables, "decisions") if row["stage"] == "curate"}
    kept = pq.read_table(output / "curated.parquet").to_pylist()
    return report, decisions, {row["interaction_id"]: row for row in kept}


def eval_file(path, *items):
    rows = [dict(zip(EVAL_ITEMS.names, item, strict=True)) for item in items]
    pq.write_table(pa.Table.from_pylist(rows, schema=EVAL_ITEMS), path)
    return path


def test_exact_copies_keep_the_best(tables, tmp_path):
    rows = [
        interaction(1, "What   is a Mill?", prose(1)),
        interaction(2, "what is a mill?", prose(1).upper(), day=1),
        interaction(3, "What is a mill?", prose(1)),
        interaction(4, "What is a wheel?", prose(2)),
    ]
    report, decisions, kept = curated(tables, rows, tmp_path / "v1", feedback=[thumb(1, interaction_id="i3")])
    assert set(kept) == {"i3", "i4"} and kept["i3"]["feedback"] == 1
    assert decisions["i1"]["rule"] == "exact_duplicate" and decisions["i1"]["kept_id"] == "i3"
    assert decisions["i2"]["kept_id"] == "i3" and decisions["i2"]["version"] == "v1"
    assert (report.read, report.rows, report.dropped) == (4, 2, {"exact_duplicate": 2})


@pytest.mark.parametrize("exact_duplicates", [True, False])
def test_a_copy_of_an_answer_that_a_person_corrected_is_dropped(tables, tmp_path, exact_duplicates):
    rows = [
        interaction(1, "What is a mill?", prose(1)),
        interaction(2, "What is  a mill?", prose(1).upper(), day=1),
        interaction(3, "What is a wheel?", prose(1)),
    ]
    edit = thumb(0, interaction_id="i1", name="correction", label="corrected", comment=prose(2)) | {"value": None}
    settings = CurationSettings(exact_duplicates=exact_duplicates)
    report, decisions, kept = curated(tables, rows, tmp_path / "v1", settings, [edit])
    assert {name: json.loads(row["completion"])["content"] for name, row in kept.items()} == {"i1": prose(2), "i3": prose(1)}
    assert report.dropped == {"corrected_answer": 1} and decisions["i2"]["rule"] == "corrected_answer"


def test_near_copies_are_verified_and_grouped(tables, tmp_path):
    words = prose(3).split()
    close, closer = words.copy(), words.copy()
    close[10], closer[11] = "otter", "otter"
    far = words[:30] + prose(4, 30).split()
    rows = [interaction(n, "Tell me a story", " ".join(text)) for n, text in enumerate([words, close, closer, far])]
    _, decisions, kept = curated(tables, rows, tmp_path / "v1")
    assert len(kept) == 2 and "i3" in kept
    dropped = [row for row in decisions.values() if not row["kept"]]
    assert {row["rule"] for row in dropped} == {"near_duplicate"} and len(dropped) == 2
    assert {row["kept_id"] for row in dropped} == set(kept) - {"i3"}
    assert all(0.7 <= float(row["detail"].removeprefix("similarity ")) < 1 for row in dropped)
    _, _, all_kept = curated(tables, rows, tmp_path / "v2", CurationSettings(near_duplicates={"similarity": 0.95}))
    assert len(all_kept) == 4
    _, _, all_kept = curated(tables, rows, tmp_path / "v3", CurationSettings(near_duplicates={"enabled": False}))
    assert len(all_kept) == 4


def test_an_exact_copy_points_at_the_row_that_stayed_in_the_end(tables, tmp_path):
    words = prose(5).split()
    other = [*words[:-1], "otter", "otter", "otter"]
    rows = [interaction(1, "Go", " ".join(words)), interaction(2, "go", " ".join(words)), interaction(3, "Go", " ".join(other))]
    _, decisions, kept = curated(tables, rows, tmp_path / "v1")
    assert set(kept) == {"i3"} and decisions["i1"]["kept_id"] == decisions["i2"]["kept_id"] == "i3"


def test_the_same_words_asked_and_answered_are_different_examples(tables, tmp_path):
    words = prose(8, 80).split()
    rows = [
        interaction(1, "Finish this: " + " ".join(words[:40]), " ".join(words[40:])),
        interaction(2, "Write it all", " ".join(words)),
        interaction(3, "Write it all now", " ".join(words)),
    ]
    _, decisions, kept = curated(tables, rows, tmp_path / "v1")
    assert len(kept) == 2 and "i1" in kept and decisions["i2"]["rule"] != decisions["i3"]["rule"]


def test_thumbs_down_even_when_it_came_after_cleaning(tables, tmp_path):
    rows = [interaction(1, "Go on", prose(6)), interaction(2, "Go on", prose(7))]
    _, _, kept = curated(tables, rows, tmp_path / "v1")
    assert len(kept) == 2
    before = slice_digest(tables, "feedback", "tutor")
    store(tables, "feedback", [thumb(-1, request_id="r1")])
    assert slice_digest(tables, "feedback", "tutor") != before
    report = curate(tables, "tutor", tmp_path / "v2", CurationSettings(), None)
    assert report.dropped == {"thumbs_down": 1}
    report = curate(tables, "tutor", tmp_path / "v3", CurationSettings(feedback={"drop_thumbs_down": False}), None)
    assert report.rows == 2
    assert {row["version"] for row in read(tables, "decisions") if row["stage"] == "curate"} == {"v1", "v2", "v3"}


def test_evaluation_items_are_found_wherever_they_stand(tables, tmp_path):
    question, answer = prose(10, 40), prose(11, 30)
    half = " ".join(question.split()[:24])
    little = " ".join(question.split()[:14])
    items = eval_file(
        tmp_path / "items.parquet",
        ("quiz", "1", question, answer),
        ("quiz", "2", prose(12, 40), "42"),
        ("short", "1", "Who owns the mill?", None),
        ("short", "2", "Bread now", None),
        ("short", "3", "one two three four five six seven eight nine ten", None),
    )
    rows = [
        interaction(1, f"Please answer: {question.upper()}!", "no idea"),
        interaction(2, f"{half} and so on", "no idea"),
        interaction(3, f"{little} and so on", "no idea at all"),
        interaction(4, "something else entirely", f"It is: {answer}"),
        interaction(5, "Tell me. who owns THE mill", "the miller"),
        interaction(6, "bread, now!", "here it is"),
        interaction(7, "bring bread now please", "here it comes, 42"),
        interaction(
            8,
            [
                {"role": "user", "content": question},
                {"role": "assistant", "content": "hm"},
                {"role": "user", "content": "and then?"},
            ],
            "then it ends",
        ),
        interaction(10, "count one two three four five six seven eight nine", "and so it goes on for ever"),
        interaction(11, "count one two three four five six seven eight nine ten", "done and dusted"),
        interaction(9, [{"role": "system", "content": question}, {"role": "user", "content": "what now?"}], "so it goes"),
    ]
    report, decisions, kept = curated(tables, rows, tmp_path / "v1", items=items)
    assert set(kept) == {"i3", "i7", "i9", "i10"}
    assert decisions["i1"]["detail"] == "quiz:1, 100 % of its words" and decisions["i6"]["rule"] == "contaminated"
    assert report.suites == {
        "quiz": {"items": 2, "items_found": 1, "rows_holding_items": 4},
        "short": {"items": 3, "items_found": 3, "rows_holding_items": 3},
    }
    assert json.loads((tmp_path / "v1" / "decontamination.json").read_text()) == report.suites
    off = CurationSettings(decontamination={"enabled": False})
    assert curate(tables, "tutor", tmp_path / "v2", off, items).rows == 11


def test_a_session_goes_with_the_first_user_that_its_requests_name(tables, tmp_path):
    rows = [
        interaction(1, "Go", prose(20), session_id="a"),
        interaction(2, "Go", prose(21), session_id="a", minutes=1, user_hash="later"),
        interaction(3, "Go", prose(22), session_id="a", minutes=2, user_hash="earliest letter, last request"),
        interaction(4, "Go", prose(23), session_id="b"),
    ]
    _, _, kept = curated(tables, rows, tmp_path / "v1")
    assert {row["interaction_id"]: row["user_hash"] for row in kept.values()} == {
        "i1": "later",
        "i2": "later",
        "i3": "later",
        "i4": None,
    }
    assert all(row["signature"] for row in kept.values())


def test_signatures_of_other_settings_are_refused(tables, tmp_path):
    rows = [interaction(1, "Go", prose(1))]
    curated(tables, rows, tmp_path / "v1")
    with pytest.raises(
        CurationError,
        match=r"16 bands of 8 hashes.*1 rows were cleaned with other settings: materialize cleaned_interactions again",
    ):
        curate(tables, "tutor", tmp_path / "v2", CurationSettings(near_duplicates={"bands": 16, "rows": 8}), None)


@pytest.mark.parametrize("name", ["trace_id", "request_id", "alias_id"])
def test_a_row_that_feedback_finds_by_another_name_changes_the_digest(tables, tmp_path, name):
    """content_sha256 leaves such names out, and cleaned_interactions does not have them."""

    def read_again(identity):
        store(
            tables, "interactions", [interaction(1, "Go on", prose(6), **{name: identity}), interaction(2, "Go on", prose(7))]
        )

    read_again("a")
    clean(tables, "tutor", days_of([interaction(1, "", "")]), CurationSettings())
    said = thumb(-1, **{"trace_id" if name == "trace_id" else "request_id": "b"})
    store(tables, "feedback", [said])
    before = slice_digest(tables, "interactions", "tutor")
    assert curate(tables, "tutor", tmp_path / "v1", CurationSettings(), None).rows == 2
    read_again("b")
    assert slice_digest(tables, "interactions", "tutor") != before
    assert curate(tables, "tutor", tmp_path / "v2", CurationSettings(), None).dropped == {"thumbs_down": 1}


def test_nothing_to_curate_is_an_empty_dataset(tables, tmp_path):
    report = curate(tables, "tutor", tmp_path / "v1", CurationSettings(), None)
    assert (report.read, report.rows) == (0, 0)
    assert pq.read_table(tmp_path / "v1" / "curated.parquet").num_rows == 0


@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_law_the_order_of_days_and_rows_does_not_matter(data, tmp_path_factory):
    """Texts are drawn from a small set of near and exact copies, so that groups form and chain."""
    picks = data.draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2), st.sampled_from([None, -1, 1])),
            min_size=2,
            max_size=14,
        )
    )
    rows, feedback = [], []
    for number, (text, edit, day, opinion) in enumerate(picks):
        words = prose(text, 40).split()
        words[edit * 5 : edit * 5 + min(edit, 1)] = ["otter"] * min(edit, 1)
        rows.append(interaction(number, "Go", " ".join(words), day=day, session_id=f"s{number % 5}"))
        if opinion:
            feedback.append(thumb(opinion, interaction_id=f"i{number}"))
    results = []
    for order in (rows, data.draw(st.permutations(rows))):
        home = tmp_path_factory.mktemp("law")
        tables = Tables(LakeLayout.open(home / "lake"))
        if feedback:
            store(tables, "feedback", feedback)
        by_day = {}
        for row in order:
            by_day.setdefault(row["dt"], []).append(row)
        for day, day_rows in by_day.items():
            store(tables, "interactions", day_rows)
            clean(tables, "tutor", [day], CurationSettings())
        report = curate(tables, "tutor", home / "v1", CurationSettings(), None)
        decisions = sorted(map(str, (row for row in read(tables, "decisions") if row["stage"] == "curate")))
        assert report.read == len(decisions) == len(rows)
        results.append((decisions, (home / "v1" / "curated.parquet").read_bytes()))
    assert results[0] == results[1]


SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data: public evaluation suites")
def test_planted_benchmark_questions_are_caught(tables, tmp_path):
    gsm8k = [json.loads(line) for line in (SHARED / "gsm8k_test.jsonl").read_text().splitlines()][:200]
    with gzip.open(SHARED / "HumanEval.jsonl.gz", "rt") as file:
        human_eval = [json.loads(line) for line in file]
    items = eval_file(
        tmp_path / "items.parquet",
        *[("gsm8k", str(n), item["question"], item["answer"]) for n, item in enumerate(gsm8k)],
        *[("humaneval", item["task_id"], item["prompt"], item["canonical_solution"]) for item in human_eval],
    )
    train = [json.loads(line) for line in (SHARED / "gsm8k_train.jsonl").read_text().splitlines()][:300]
    rows = [interaction(f"t{n}", item["question"], item["answer"]) for n, item in enumerate(train)]
    planted = [
        interaction(f"p{n}", "Solve this. " + item["question"].replace(" the ", " the  "), "?")
        for n, item in enumerate(gsm8k[::10])
    ]
    planted += [interaction(f"h{n}", f"Finish\n{item['prompt']}", "pass") for n, item in enumerate(human_eval[::20])]
    report, _, kept = curated(tables, rows + planted, tmp_path / "v1", items=items)
    assert not any(row["interaction_id"] in kept for row in planted)
    assert len(kept) >= 297
    assert report.suites["gsm8k"]["items_found"] >= 20 and report.suites["humaneval"]["items_found"] >= 9


COUNTS = {"read": 4, "kept": 2, "dropped": {"clean: error": 1}, "quarantined": {"ingest: wrong_type": 1}}


def test_counts_are_read_from_manifests():
    counts = RecordCounts.of(Manifest.model_construct(metrics={"read": 3, "records": COUNTS}))
    assert counts.adds_up and (counts.read, counts.rows) == (4, 2)
    assert counts.as_metrics() == {**COUNTS, "elsewhere": 0}
    assert counts.as_rows() == [
        {"stage and rule": "clean: error", "records": 1},
        {"stage and rule": "ingest: wrong_type", "records": 1},
    ]


def test_a_record_that_is_lost_is_an_error():
    with pytest.raises(CountsError, match="5 records were read, but 2 kept"):
        RecordCounts(5, 2, COUNTS["dropped"], COUNTS["quarantined"]).check()
