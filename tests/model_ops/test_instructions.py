"""Instructions of IFEval: each is followed by one answer and not by another."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from model_ops.tasks.kinds import CHECKS, InstructionsItem, score_instructions

ENGLISH = "This is an answer in plain English, with enough letters to tell."
CASES = [
    ("keywords:existence", {"keywords": ["cat", "dog"]}, "Cats and a dog", "a cat"),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "at least"}, "cat Cat", "cat"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "category", "a cat."),
    ("keywords:letter_frequency", {"letter": "a", "let_frequency": 3, "let_relation": "less than"}, "Aa", "Aaa"),
    ("language:response_language", {"language": "de"}, "Das ist eine Antwort auf Deutsch, und sie ist lang genug.", ENGLISH),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", "One 2.5 only."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "now three words"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        "a\n\n'then, b",
        "then a\n\nb",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b]", "[a]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\nP.S. b", "a. Psst"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "a\nP.P.S b", "a\nP.S. b"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n- b\n- c"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "maybe"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a Section 2",
        "Section 1",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\nb", "<<>>\nb"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "Say it\nit", "it. Say it"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'so: "the end."', "The end. No"),
    ("startend:quotation", {}, '"a"', '"a'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "A BIG cat", "A cat"),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH.lower(), ENGLISH),
    ("punctuation:no_comma", {}, "a; b", "a, b"),
]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "ifeval_en.jsonl"


def item(names, arguments):
    return InstructionsItem(suite="s", item_id="1", messages=[], instruction_id_list=names, kwargs=arguments)


def test_each_instruction_is_followed_by_one_answer_and_not_by_another():
    assert {name for name, *_ in CASES} == set(CHECKS)
    for name, arguments, right, wrong in CASES:
        asked = item([f"en:{name}"], [arguments])
        assert (score_instructions(asked, right), score_instructions(asked, wrong)) == (1.0, 0.0), name


def test_the_score_is_the_share_that_an_answer_follows():
    asked = item(["punctuation:no_comma", "startend:quotation"], [{}, {}])
    assert [score_instructions(asked, text) for text in ('"a"', "a", "a, b", "")] == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("names", "arguments", "said"),
    [
        (["en:poetry:rhyme"], [{}], "not known here: poetry:rhyme"),
        (["keywords:existence"], [{}], "no usable arguments for its instruction keywords:existence"),
        (["keywords:frequency"], [{"keyword": "a", "frequency": 1, "relation": "about"}], "no usable arguments"),
        (["punctuation:no_comma"], [], "needs `kwargs`"),
    ],
)
def test_an_item_that_cannot_be_scored_is_refused(names, arguments, said):
    with pytest.raises(ValidationError, match=said):
        item(names, arguments)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data: IFEval's prompts")
def test_all_published_prompts_are_items():
    rows = [json.loads(line) for line in SHARED.read_text().splitlines()]
    assert len([item(row["instruction_id_list"], row["kwargs"]) for row in rows]) == 541
