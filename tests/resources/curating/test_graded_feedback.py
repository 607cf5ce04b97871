"""What feedback counts for: by its name, its numbers and words, and the last vote of each name."""

from datetime import timedelta

import pytest
from interaction_rows import START, heard, interaction, store, thumb

from resources.curating.curation import FeedbackRules
from resources.curating.row_feedback import FeedbackScale, feedback_notes, feedback_scales, guessed_bound
from resources.curating.row_feedback import _names_of as names_of
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


def given(tables, *votes, rules=None):
    """The value of each row, for (name, value, label) or (name, value) about rows 1, 2, ..."""
    store(tables, "interactions", [interaction(n, f"question {n}", "a") for n in range(1, len(votes) + 1)])
    rows = [
        thumb(0, interaction_id=f"i{n}", name=vote[0], label=vote[2] if vote[2:] else None) | {"value": vote[1]}
        for n, vote in enumerate(votes, 1)
    ]
    store(tables, "feedback", rows)
    values = heard(tables, "tutor", rules or FeedbackRules())
    return [values.get(f"i{n}") for n in range(1, len(votes) + 1)]


@pytest.mark.parametrize(("votes", "values"), [
    ([("user_score", 0), ("user_score", 1)], [-1, 1]),
    ([("user_score", 0), ("user_score", 1), ("user_score", -1)], [0, 1, -1]),
    ([("user_score", 0), ("user_score", 1), ("user_score", 0.3)], [0, 1, 0.3]),
    # words are no numbers of a scale
    ([("thumbs", 0), ("thumbs", 1), ("thumbs", -1, "down")], [-1, 1, -1]),
    ([("negative_feedback", 1, "true"), ("negative_feedback", -1, "False")], [-1, 1]),
    ([("hallucination", 1), ("hallucination", 0)], [-1, 1]),
    ([("hallucination", 0.83), ("hallucination", 0.1), ("hallucination", 1)], [None, None, None]),
    ([("hallucination", 1, "hallucinated"), ("hallucination", 1, "factual")], [-1, 1]),
    ([("disliked", -1, "down"), ("disliked", 1, "Thumbs up")], [-1, 1]),
    ([("toxicity_check", 1, "true"), ("latency", 3.5), ("toxicity_check", 1, "pass")], [None, None, 1]),
    ([("label of a", 0), ("label of a", 1), ("label of toxic", 0), ("label of toxic", 4)], [-1, 1, None, None]),
    ([("quality", None, "excellent"), ("quality", None, "Poor"), ("toxicity", None, "severe")], [1, -1, -1]),
    ([("stars", 5, "good"), ("stars", 2, "bad")], [5, -1]),
    ([("hallucination", 0.83, "yes"), ("hallucination", 0.1, "false"), ("hallucination", 0.2)], [-1, 1, None]),
    ([("thumbs", 1, "up"), ("thumbs", 0, "neutral"), ("thumbs", 0)], [1, None, -1]),
])  # fmt: skip
def test_names_numbers_and_words_say_what_is_good(tables, votes, values):
    assert given(tables, *votes) == values


def test_the_rules_go_before_the_name(tables):
    rules = FeedbackRules(least={"hallucination": 1}, most={"toxicity": 0.5})
    assert feedback_scales(tables, "tutor", rules) == {}
    votes = [("hallucination", 1), ("hallucination", 0), ("toxicity", 0.5), ("toxicity", 0.9)]
    assert given(tables, *votes, rules=rules) == [1, -1, 1, pytest.approx(-0.4)]
    assert feedback_scales(tables, "tutor", rules)["toxicity"] == FeedbackScale(-1, None, 0.5)
    assert list(feedback_notes(tables, "tutor", rules)) == []
    with pytest.raises(ValueError, match="stars is in least and in most"):
        FeedbackRules(least={"stars": 4}, most={"stars": 2})


def test_a_word_beside_a_number_of_a_scale_decides_only_where_the_number_is_none_of_it(tables):
    votes = [("thumbs", 5), ("thumbs", 1, "true")]
    assert given(tables, *votes, rules=FeedbackRules(least={"thumbs": 4})) == [5, 1]


def test_no_bound_is_guessed_for_numbers_of_both_signs(tables):
    given(tables, ("user_score", -2), ("user_score", 0), ("user_score", 5))
    assert [guessed_bound(each) for each in names_of(tables, "tutor")] == [None]


def test_a_vote_on_an_answer_of_another_workload_counts_for_nothing(tables):
    store(tables, "interactions", [interaction(1, "q", "a", session_id="s1")])
    store(tables, "feedback", [thumb(-1, session_id="s1", tie="elsewhere")])
    assert heard(tables, "tutor").get("i1") is None


def test_what_a_name_decides_is_said_with_the_rule_that_says_otherwise(tables):
    given(tables, ("hallucination", 0), ("toxicity", 0.2), ("toxicity", 0.9), ("latency", 40), ("user_score", 0))
    assert list(feedback_notes(tables, "tutor", FeedbackRules(least={}))) == [
        "feedback toxicity (0.2 to 0.9): by the name less is better, so the numbers count for nothing; give the recipe the "
        "highest good ones, such as `curation: {feedback: {most: {toxicity: 0.5}}}`",
        "feedback user_score: its numbers are 0 and 1 alone, so 0 is a thumb down; `curation: {feedback: {least: {NAME: 0}}}` says that "
        "it is none",
        "feedback hallucination: by the name true and 1 are bad; `curation: {feedback: {least: {NAME: 1}}}` says that they are good",
        "feedback latency (40 to 40): the name does not say which end is good, so it counts for nothing; `least` or `most` in "
        "`curation: {feedback: ...}` says it",
    ]


@pytest.mark.parametrize(("votes", "value"), [
    ([(1, None, 0), (None, "none", 1)], None),
    ([(-1, "down", 0), (None, "Undo", 1)], None),
    ([(-1, "down", 0), (None, "removed", 1), (1, "up", 2)], 1),
    ([(None, "removed", 0), (-1, "down", 1)], -1),
    ([(-1, "down", 0), (None, "rude tone", 1)], -1),
    # of one time, the last line counts
    ([(-1, "down", 0), (1, "up", 0)], 1),
    ([(1, "up", 0), (None, "none", 0)], None),
])  # fmt: skip
def test_the_last_vote_counts_and_may_be_taken_back(tables, votes, value):
    store(tables, "interactions", [interaction(1, "q", "a")])
    rows = [thumb(0, interaction_id="i1", label=label, source_uri="f.jsonl", source_row=row) | {"value": number,
            "ts": START + timedelta(minutes=minutes)} for row, (number, label, minutes) in enumerate(votes)]  # fmt: skip
    store(tables, "feedback", rows)
    assert heard(tables, "tutor").get("i1") == value


def test_what_the_run_does_not_understand_is_said_once_for_each_name(tables):
    votes = [
        ("politeness", 1, "true"), ("politeness", -1, "false"), ("verdict", None, "so so"), ("tone", 1, "up"),
        ("user_score", 1),
    ]  # fmt: skip
    given(tables, *votes)
    assert list(feedback_notes(tables, "tutor", FeedbackRules())) == [
        "feedback politeness: no word of the name tells which end is good, so true, 1 and more are taken as good; `most` in "
        "`curation: {feedback: {most: {NAME: 0}}}` says that they are bad",
        "feedback verdict: has words that are not understood and count for nothing",
    ]


@pytest.mark.parametrize(
    ("name", "voter", "minutes", "value"),
    [("feedback", "ana", 1, None), ("feedback", "ben", 1, -1), ("other", "ana", 1, -1), ("feedback", "ana", -1, -1)],
)
def test_an_empty_cell_takes_the_thumb_of_its_person_back(tables, name, voter, minutes, value):
    store(tables, "interactions", [interaction(1, "q", "a")])
    votes = [("thumbs", -1, "down", "ana", 0), (name, None, "none", voter, minutes)]
    rows = [
        thumb(0, interaction_id="i1", name=name, label=label, source_row=row)
        | {"value": number, "voter_hash": who, "ts": START + timedelta(minutes=after)}
        for row, (name, number, label, who, after) in enumerate(votes)
    ]
    store(tables, "feedback", rows)
    assert heard(tables, "tutor").get("i1") == value


@pytest.mark.parametrize(("second", "value"), [("ben", -1), ("ana", 1)])
def test_one_persons_complaint_is_not_taken_back_by_another_one(tables, second, value):
    store(tables, "interactions", [interaction(1, "q", "a")])
    votes = [(-1, "ana", 0), (1, second, 1)]
    rows = [
        thumb(number, interaction_id="i1", source_row=row) | {"voter_hash": voter, "ts": START + timedelta(minutes=minutes)}
        for row, (number, voter, minutes) in enumerate(votes)
    ]
    store(tables, "feedback", rows)
    assert heard(tables, "tutor").get("i1") == value
