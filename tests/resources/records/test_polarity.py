"""Which end of a score is good, by its name; and what a label of a data set says."""

import pytest

from resources.records.polarity import good_end, is_known, label_of, thumb_of

LESS_IS_BETTER = """
negative_user_feedback negativeFeedback thumbs_down disliked disliked_flag is_bad is_wrong incorrect hallucination
Hallucination hallucinated hallucination_score toxicity severe_toxicity harmfulness bias error error_rate errorRate
refusal failed complaint user-flagged reported escalated offensive unsafe spam frustration edit_distance perplexity
jailbreak pii_leak off_topic offTopic irrelevance unhelpful dissatisfaction toxicity_detected not_helpful has_error
latency_lower_is_better false_positive misleading too_long nonsense
factual_errors needs_review low_quality low_relevance low_confidence safety_violation safety_flag safety_issue quality_issue
relevance_issue accuracy_error correctness_error grounding_failure unsuccessful attack_success prompt_injection_success offtopic
needs_human cancelled protected_material empty_answer lacks_citations blocked content_filtered gave_up ticket_reopened refund
jailbroken poor_quality issue_not_resolved jailbreak_not_blocked safety_blocked lack_of_accuracy user_not_satisfied less_helpful
human_needed did_not_answer quality_issue_count toxicity_check_failed criminality insensitivity free_text_toxicity zero_shot_errors
"""
MORE_IS_BETTER = """
no_hallucination non_toxic nontoxic error_free not_wrong hallucination_free safety faithfulness toxicity_passed
harmlessness thumbs_up thumbs_up_down user_score csat rating liked helpfulness answer_correct user_feedback quality
reward feedback error_handling bug_fix_quality unbiased groundedness vote conciseness stars no_errors unit_test_pass
understanding zero_shot_accuracy free_text_quality pii_removed jailbreak_resistance fault_tolerance injection_blocked
jailbreak_defended free_of_errors zero_errors without_errors zero_factual_errors no_safety_issue no_factual_errors low_risk
low_toxicity resolved_without_escalation resolved_without_help resolved_no_escalation issue_resolved harm_reduction error_recovery
refusal_accuracy correct_refusal jailbreak_refused toxicity_check_passed needs_met first_time_resolution real_time_accuracy
helpful_count task_success
"""
NOBODY_KNOWS = [
    "toxicity_check", "hallucination_guard", "latency", "cost", "total_tokens", "hallucination_quality", "no_answer",
    "word_count", "time_to_first_token", "resolution_time", "user_effort", "answer_length",
]  # fmt: skip


@pytest.mark.parametrize(("end", "names"), [(-1, LESS_IS_BETTER.split()), (1, MORE_IS_BETTER.split()), (0, NOBODY_KNOWS)])
def test_a_name_says_which_end_is_good_in_any_spelling(end, names):
    assert {name: good_end(name) for name in names} == dict.fromkeys(names, end)
    assert {good_end(name.replace("_", " ")) for name in names} == {end}


def test_a_name_without_a_word_that_tells_is_unknown_and_taken_as_praise():
    assert {good_end(name) for name in ("politeness", "verdict", "user_score")} == {1}
    assert [
        name for name in ("politeness", "verdict", "user_score", "csat", "helpfulness", "latency") if not is_known(name)
    ] == ["politeness", "verdict"]


def test_words_are_thumbs_and_labels_are_true_or_false_or_a_number():
    assert [thumb_of(word) for word in ("Thumbs Up", "thumbs-down", "FALSE", "not helpful", "removed", "sports",
            None)] == [1, -1, -1, -1, None, None, None]  # fmt: skip
    labels = {"true": ("True", "true", "yes", "y", "T", "desirable", "good", "chosen", "not wrong"),
        "false": ("False", "undesirable", "undesired", "not desirable", "non-desirable", "n", "f", "bad", "Rejected"),
        "0": ("0", "0.0"), "1": ("1", "1.0"), "3": ("3",),
        None: ("maybe", "sports", "positive", "excellent", "", "nan", "0.3", None)}  # fmt: skip
    for label, spellings in labels.items():
        assert {label_of(each) for each in spellings} == {label}
