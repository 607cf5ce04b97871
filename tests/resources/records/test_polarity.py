"""Which end of a score is good, by its name; and what a label of a data set says."""

import pytest

from resources.records.polarity import good_end, label_of, thumb_of

LESS_IS_BETTER = """
negative_user_feedback negativeFeedback thumbs_down disliked disliked_flag is_bad is_wrong incorrect hallucination
Hallucination hallucinated hallucination_score toxicity severe_toxicity harmfulness bias error error_rate errorRate
refusal failed complaint user-flagged reported escalated offensive unsafe spam frustration edit_distance perplexity
jailbreak pii_leak off_topic offTopic irrelevance unhelpful dissatisfaction toxicity_detected not_helpful has_error
latency_lower_is_better false_positive misleading too_long nonsense
"""
MORE_IS_BETTER = """
no_hallucination non_toxic nontoxic error_free not_wrong hallucination_free safety faithfulness toxicity_passed
harmlessness thumbs_up thumbs_up_down user_score csat rating liked helpfulness answer_correct user_feedback quality
reward feedback error_handling bug_fix_quality unbiased groundedness vote conciseness stars no_errors unit_test_pass
understanding
"""
NOBODY_KNOWS = [
    "toxicity_check",
    "hallucination_guard",
    "latency",
    "cost",
    "total_tokens",
    "hallucination_quality",
    "no_answer",
]


@pytest.mark.parametrize(("end", "names"), [(-1, LESS_IS_BETTER.split()), (1, MORE_IS_BETTER.split()), (0, NOBODY_KNOWS)])
def test_a_name_says_which_end_is_good_in_any_spelling(end, names):
    assert {name: good_end(name) for name in names} == dict.fromkeys(names, end)
    assert {good_end(name.replace("_", " ")) for name in names} == {end}


def test_words_are_thumbs_and_labels_are_true_or_false_or_a_number():
    assert [thumb_of(word) for word in ("Thumbs Up", "thumbs-down", "FALSE", "not helpful", "removed", "sports", None)] == [
        1,
        -1,
        -1,
        -1,
        None,
        None,
        None,
    ]
    labels = {
        "true": ("True", "true", "yes", "desirable", "good", "chosen"),
        "false": ("False", "undesirable", "bad", "Rejected"),
        "0": ("0", "0.0"),
        "1": ("1", "1.0"),
        "3": ("3",),
        None: ("maybe", "sports", "positive", "", "nan", "0.3", None),
    }
    for label, spellings in labels.items():
        assert {label_of(each) for each in spellings} == {label}
