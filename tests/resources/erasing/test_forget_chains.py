"""Erasing a response that a stored request goes on from: cleaning put its turns before that request's, in every dataset."""

import json
from datetime import UTC, datetime

import pytest
from filled_lake import CURATION, learnt_datasets

from benchmarks.lake_bytes import places_of
from pipelines.asking.forget_text import plan_as_json
from resources.curating.cleaning import clean, stale_days
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget, plan_erasure
from resources.erasing.journal import ask_for
from resources.erasing.retention import RetentionSettings, remove_old_data
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forget chains")]

BY = Actor("tester", "test", "request 1")
MARK = "okapi-quartz-4711"


def turn(number, user, question, answer, *, previous=None, status="completed", day=1):
    request = {"model": "m", "input": question, "user": user, "previous_response_id": previous}
    message = {"type": "message", "role": "assistant", "status": "completed"}
    output = [{**message, "content": [{"type": "output_text", "text": answer}]}]
    response = {"id": f"resp_{number}", "object": "response", "status": status, "output": output}
    return {"request": request, "timestamp": f"2026-06-0{day}T10:00:00Z", "response": response}


SAID = [
    "Okapi: my secret is okapi-quartz-4711, how do I keep it dry in winter?",
    "Keep okapi-quartz-4711 in a wooden chest, far from walls and water.",
    "And what holds in the summer, when the air is damp?",
    "Open the lid at noon, and close it before the dew falls.",
    "Who sells such a chest near the old mill by the river?",
    "The carpenter of the next village makes two each year.",
    "How do I grind wheat in an old mill by the river?",
    "Set the stones close and feed the grain slowly, twice.",
    "Which sieve keeps the bran out of the fine flour?",
    "A silk sieve of a narrow mesh does, if shaken slowly.",
]
RECORDS = [
    turn(1, "ann", *SAID[0:2]),
    turn(2, "bob", *SAID[2:4], previous="resp_1"),
    turn(3, None, *SAID[4:6], previous="resp_2", day=2),
    turn(4, "bob", *SAID[6:8]),
    turn(5, "eve", *SAID[8:10], previous="resp_4"),
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
    tables = Tables(lake)
    ingest(tables, "tutor", {"app": SourceSettings(uri=str(log))})
    clean(tables, "tutor", stale_days(tables, "tutor", CURATION), CURATION)
    learnt_datasets(lake)
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
    assert places_of({MARK}, lake.root / "datasets") and named(lake) == {f"resp_{n}" for n in range(1, 6)}
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
        rows = [row for row in read(lake, "cleaned_interactions") if row["interaction_id"] in later]
        assert {row["status"] for row in rows} == {"context_elsewhere"}


def test_an_erased_later_response_leaves_the_one_before_it(lake):
    plan = forget(lake, ask_for(Tables(lake), "user", "eve"), BY, vacuum=True)
    assert plan.later == [] and named(lake) == {f"resp_{n}" for n in range(1, 5)}
