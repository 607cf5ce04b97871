"""Task `ifeval`: the answer follows instructions that a program can check (IFEval, Zhou et al. 2023, arXiv 2311.07911).

The ids and arguments are those of the published data, with or without the language before them (`en:punctuation:no_comma`).
Sentences are counted by their marks, and languages are told apart by py3langid, where the published checks use NLTK and
langdetect; the rest follows the published checks, in their strict form.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from model_ops.tasks.item import Item

FEWEST_LETTERS = 20
"""Letters of an answer below which its language cannot be told."""
CONSTRAINED = ("my answer is yes.", "my answer is no.", "my answer is maybe.")
BULLET = re.compile(r"^\s*(?:\*[^*\n]|-).*$", re.MULTILINE)


class InstructionsItem(Item):
    """A question with instructions on the form of its answer."""

    kind: Literal["ifeval"] = "ifeval"
    instruction_id_list: list[str] = Field(min_length=1)
    kwargs: list[dict[str, Any]]
    """Arguments of each instruction."""

    @model_validator(mode="after")
    def _is_known(self):
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError("needs `kwargs`, a list with the arguments of each instruction")
        for name, given in zip(self.instruction_id_list, self.kwargs, strict=True):
            if _bare(name) not in CHECKS:
                raise ValueError(f"has an instruction that is not known here: {_bare(name)[:60]}")
            try:  # arguments that are missing or of another type are found before anything is asked
                CHECKS[_bare(name)]("A text, to try. P.S. it", given)
            except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
                raise ValueError(f"has no usable arguments for its instruction {_bare(name)}") from error
        return self


def score_instructions(item: InstructionsItem, text: str) -> float:
    """The share of instructions that the answer follows; an empty answer follows none."""
    if not text.strip():
        return 0.0
    followed = [CHECKS[_bare(name)](text, given) for name, given in zip(item.instruction_id_list, item.kwargs, strict=True)]
    return sum(map(bool, followed)) / len(followed)


def language_of(text: str) -> str | None:
    """Two-letter code of the text's language; None for a text without enough letters."""
    if sum(map(str.isalpha, text)) < FEWEST_LETTERS:
        return None
    import py3langid

    return py3langid.classify(text)[0]


def _bare(name: str) -> str:
    return ":".join(name.split(":")[-2:])


def _in_bounds(count: int, relation: str, bound: int) -> bool:
    """relation: `at least`, or `less than`."""
    if relation not in ("at least", "less than"):
        raise ValueError(relation)
    return count >= int(bound) if relation == "at least" else count < int(bound)


def _occurrences(word: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))


def _sentences(text: str) -> int:
    return len([each for each in re.split(r"(?<=[.!?])[\"')\]]*\s+|\n{2,}", text) if re.search(r"\w", each)])


def _paragraphs(text: str) -> list[str]:
    """Paragraphs between blank lines."""
    return [each for each in re.split(r"\n\n", text) if each.strip()]


def _first_word(text: str, given: Mapping[str, Any]) -> bool:
    paragraphs, nth, wanted = _paragraphs(text), int(given["nth_paragraph"]), given["first_word"].lower()
    if len(paragraphs) != int(given["num_paragraphs"]) or not 1 <= nth <= len(paragraphs):
        return False
    word = re.split(r"[.,?!\s]", paragraphs[nth - 1].strip().lstrip("'\"").lower(), maxsplit=1)[0]
    return word == wanted


def _is_json(text: str) -> bool:
    bare = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip(), flags=re.IGNORECASE)
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True


def _marked(text: str, given: Mapping[str, Any]) -> bool:
    """Whether enough parts are marked as *this* or **this**."""
    marked = re.findall(r"\*[^\n*]*\*", text) + re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(each.strip("*").strip()) for each in marked) >= int(given["num_highlights"])


def _two_answers(text: str, _: Mapping[str, Any]) -> bool:
    parts = [each.strip() for each in text.split("******")]
    middle, ends = [each for each in parts[1:-1] if not each], [each for each in parts if each]
    return not middle and len(ends) == 2 and ends[0] != ends[1]


def _in_case(text: str, same: bool) -> bool:
    return same and language_of(text) in ("en", None)


CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "keywords:existence": lambda text, given: all(each.lower() in text.lower() for each in given["keywords"]),
    "keywords:frequency": lambda text, given: _in_bounds(
        text.lower().count(given["keyword"].lower()), given["relation"], given["frequency"]
    ),
    "keywords:forbidden_words": lambda text, given: not any(_occurrences(each, text) for each in given["forbidden_words"]),
    "keywords:letter_frequency": lambda text, given: _in_bounds(
        text.lower().count(given["letter"].lower()), given["let_relation"], given["let_frequency"]
    ),
    "language:response_language": lambda text, given: language_of(text) in (given["language"].lower(), None),
    "length_constraints:number_sentences": lambda text, given: _in_bounds(
        _sentences(text), given["relation"], given["num_sentences"]
    ),
    "length_constraints:number_words": lambda text, given: _in_bounds(
        len(re.findall(r"\w+", text)), given["relation"], given["num_words"]
    ),
    "length_constraints:number_paragraphs": lambda text, given: (
        len([each for each in re.split(r"\s?\*\*\*\s?", text) if each.strip()]) == int(given["num_paragraphs"])
    ),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda text, given: (
        len(re.findall(r"\[.*?\]", text)) >= int(given["num_placeholders"])
    ),
    "detectable_content:postscript": lambda text, given: bool(
        re.search(r"\s*p\.\s?p\.\s?s" if "p.p.s" in given["postscript_marker"].lower() else r"\s*p\.\s?s\.", text.lower())
    ),
    "detectable_format:number_bullet_lists": lambda text, given: len(BULLET.findall(text)) == int(given["num_bullets"]),
    "detectable_format:constrained_response": lambda text, _: any(each in text.lower() for each in CONSTRAINED),
    "detectable_format:number_highlighted_sections": _marked,
    "detectable_format:multiple_sections": lambda text, given: (
        len(re.findall(rf"\s?{re.escape(given['section_spliter'])}\s?\d+\s?", text)) >= int(given["num_sections"])
    ),
    "detectable_format:json_format": lambda text, _: _is_json(text),
    "detectable_format:title": lambda text, _: any(each.strip("<> ") for each in re.findall(r"<<[^\n]+>>", text)),
    "combination:two_responses": _two_answers,
    "combination:repeat_prompt": lambda text, given: text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower()),
    "startend:end_checker": lambda text, given: (
        text.strip().strip('"').lower().endswith(given["end_phrase"].strip().strip('"').lower())
    ),
    "startend:quotation": lambda text, _: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "change_case:capital_word_frequency": lambda text, given: _in_bounds(
        sum(each.isupper() for each in re.findall(r"[\w'-]+", text)), given["capital_relation"], given["capital_frequency"]
    ),
    "change_case:english_capital": lambda text, _: _in_case(text, text.isupper()),
    "change_case:english_lowercase": lambda text, _: _in_case(text, text.islower()),
    "punctuation:no_comma": lambda text, _: "," not in text,
}
"""Instruction -> (answer, arguments) -> whether the answer follows it."""
