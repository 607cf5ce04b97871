"""Requests that go on from an earlier response: its turns come first, whatever the order of arrival; without it they are
dropped."""

import json

import pytest
from interaction_rows import days_of, interaction, read, store

from resources.curating.cleaning import clean, stale_days
from resources.curating.curation import CurationSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

RULES = CurationSettings()


def turn(number, question, answer, *, previous=None, instructions=None, **changes):
    context = {"previous_response_id": previous} if previous else {}
    context |= {"has_instructions": True} if instructions else {}
    messages = [{"role": "system", "content": instructions}] if instructions else []
    return interaction(number,
        [*messages, {"role": "user", "content": question}], answer, session_id=None,
        params=json.dumps({"context": context} if context else {}), **changes)  # fmt: skip


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


def cleaned(tables):
    decided = {row["interaction_id"]: (row["rule"], row["detail"]) for row in read(tables, "decisions")}
    return {row["interaction_id"]: (row, *decided[row["interaction_id"]]) for row in read(tables, "cleaned_interactions")}


def test_a_row_begins_with_the_turns_before_it_and_not_with_their_instructions(tables):
    rows = [
        turn(3, "And why?", "Because it is.", previous="r2"),
        turn(1, "Is it so?", "It is so.", instructions="Old."),
        turn(2, "Really?", "Really it is.", previous="r1", instructions="Be brief.", day=1),
        turn(4, "Other", "Thing"),
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), RULES)
    found = cleaned(tables)
    said = {name: [message["content"] for message in json.loads(row["messages"])] for name, (row, *_) in found.items()}
    assert said == {"i1": ["Old.", "Is it so?"], "i4": ["Other"],
        "i2": ["Be brief.", "Is it so?", "It is so.", "Really?"],
        "i3": ["Is it so?", "It is so.", "Really?", "Really it is.", "And why?"]}  # fmt: skip
    assert {rule for _, rule, _ in found.values()} == {"kept"} and dict(found["i3"][0]["quality"])["earlier_turns"] == 4


@pytest.mark.parametrize("broken", [
    {"request_id": "other"}, {"status": "failure", "error": "boom"}, {"params": '{"context": {"elsewhere": "prompt"}}'},
    {"source": "x"}, {"params": '{"context": {"previous_response_id": "r1"}}'},
])  # fmt: skip
def test_a_row_whose_earlier_response_is_not_there_whole_is_dropped_by_name(tables, broken):
    rows = [turn(1, "Is it so?", "It is so.") | broken, turn(2, "Really?", "Really it is.", previous="r1")]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), RULES)
    assert cleaned(tables)["i2"][1:] == ("context_elsewhere", "previous_response_id")


def test_a_day_is_cleaned_again_when_the_earlier_response_arrives_on_another_one(tables):
    late, early = turn(2, "Really?", "Really it is.", previous="r1", day=1), turn(1, "Is it so?", "It is so.")
    store(tables, "interactions", [late])
    clean(tables, "tutor", stale_days(tables, "tutor", RULES), RULES)
    assert cleaned(tables)["i2"][1] == "context_elsewhere" and not stale_days(tables, "tutor", RULES)
    store(tables, "interactions", [early])
    assert stale_days(tables, "tutor", RULES) == days_of([early, late])
    clean(tables, "tutor", days_of([early, late]), RULES)
    assert cleaned(tables)["i2"][1] == "kept" and not stale_days(tables, "tutor", RULES)
