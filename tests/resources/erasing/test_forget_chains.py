"""Erasing a response that a stored request goes on from: cleaning put its turns before that request's, in every dataset."""

import json
from datetime import UTC, datetime

import pytest
from filled_lake import CURATION, made

from benchmarks.lake_bytes import places_of
from pipelines.asking.forget_text import plan_as_json
from resources.artefacts.registry import Registry
from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.curating.cleaning import clean, stale_days
from resources.curating.selection import curate
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget, plan_erasure
from resources.erasing.journal import ask_for
from resources.erasing.retention import RetentionSettings, remove_old_data
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.manifests.manifest import Input
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forget chains")]

BY = Actor("tester", "test", "request 1")
MARK = "okapi-quartz-4711"


def turn(number, user, question, answer, *, previous=None, status="completed", day=1):
    return {
        "request": {"model": "m", "input": question, "user": user, "previous_response_id": previous},
        "timestamp": f"2026-06-0{day}T10:00:00Z",
        "response": {
            "id": f"resp_{number}",
            "object": "response",
            "status": status,
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": answer}],
                }
            ],
        },
    }


RECORDS = [
    turn(
        1,
        "ann",
        f"Okapi: my secret is {MARK}, how do I keep it dry in winter?",
        f"Keep {MARK} in a wooden chest, far from walls and water.",
    ),
    turn(
        2,
        "bob",
        "And what holds in the summer, when the air is damp?",
        "Open the lid at noon, and close it before the dew falls.",
        previous="resp_1",
    ),
    turn(
        3,
        None,
        "Who sells such a chest near the old mill by the river?",
        "The carpenter of the next village makes two each year.",
        previous="resp_2",
        day=2,
    ),
    turn(
        4, "bob", "How do I grind wheat in an old mill by the river?", "Set the stones close and feed the grain slowly, twice."
    ),
    turn(
        5,
        "eve",
        "Which sieve keeps the bran out of the fine flour?",
        "A silk sieve of a narrow mesh does, if shaken slowly.",
        previous="resp_4",
    ),
]


def read(lake, name):
    return Tables(lake).open(name).to_pyarrow_table().to_pylist()


def named(lake, name="cleaned_interactions"):
    ids = {row["interaction_id"]: row["request_id"] for row in read(lake, "interactions")}
    return {ids[row["interaction_id"]] for row in read(lake, name)}


@pytest.fixture
def lake(tmp_path):
    log = tmp_path / "app.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    lake = LakeLayout.open(tmp_path / "lake")
    tables, registry = Tables(lake), Registry(lake, "tutor")
    ingest(tables, "tutor", {"app": SourceSettings(uri=str(log))})
    clean(tables, "tutor", stale_days(tables, "tutor", CURATION), CURATION)
    curated = made(
        registry,
        "dataset",
        "curated_interactions",
        [Input(kind="table", name="interactions", digest="1" * 64)],
        lambda output: curate(tables, "tutor", output, CURATION, None),
    )
    made(
        registry,
        "dataset",
        "sft_dataset",
        [curated.as_input()],
        lambda output: build_sft_dataset(
            registry.directory(curated) / "curated.parquet",
            None,
            output,
            DatasetSettings(test_share=0, validation_share=0),
            tables,
        ),
    )
    return lake


@pytest.mark.parametrize(
    "case",
    thorough_except(
        [("user", "ann", True), ("interaction", "resp_1", False)],
        [(*of, emptied) for of in (("user", "ann"), ("interaction", "resp_1")) for emptied in (False, True)],
    ),
    ids=str,
)
def test_no_byte_of_an_earlier_response_is_left_in_what_goes_on_from_it(lake, case):
    (kind, identifier, emptied), tables = case, Tables(lake)
    if emptied:  # the links are known, though the texts of raw rows are gone
        remove_old_data(lake, "tutor", RetentionSettings(raw_days=1, old_files_days=0), datetime(2026, 6, 9, tzinfo=UTC))
        assert stale_days(tables, "tutor", CURATION) == []
    assert {place.split("/")[0] for place in places_of({MARK}, lake.root / "datasets")} and named(lake) == {
        f"resp_{n}" for n in range(1, 6)
    }
    asked = ask_for(tables, kind, identifier)
    plan = plan_erasure(lake, asked)
    later = {row["interaction_id"] for row in read(lake, "interactions") if row["request_id"] in ("resp_2", "resp_3")}
    # an emptied turn is compared as cleaned: one without a user that begins with it is erased as its repetition
    repeated = emptied and kind == "interaction"
    assert set(json.loads(plan_as_json(plan))["later"]) == set(plan.later) <= later
    assert (plan.interactions, len(plan.later)) == ((2, 1) if repeated else (1, 2))
    done = forget(lake, asked, BY, vacuum=True)
    assert (done.tables, done.later) == (plan.tables, plan.later) and done.tables["cleaned_interactions"] == 3
    assert places_of({MARK}, lake.root) == [] and named(lake) == {"resp_4", "resp_5"}
    assert named(lake, "interactions") == {"resp_2", "resp_4", "resp_5"} | (set() if repeated else {"resp_3"})
    days = stale_days(tables, "tutor", CURATION)
    clean(tables, "tutor", days, CURATION)
    assert stale_days(tables, "tutor", CURATION) == [] and bool(days) is not emptied
    if not emptied:
        assert {row["status"] for row in read(lake, "cleaned_interactions") if row["interaction_id"] in later} == {
            "context_elsewhere"
        }


def test_an_erased_later_response_leaves_the_one_before_it(lake):
    plan = forget(lake, ask_for(Tables(lake), "user", "eve"), BY, vacuum=True)
    assert plan.later == [] and named(lake) == {f"resp_{n}" for n in range(1, 5)}
