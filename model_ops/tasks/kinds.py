"""Table of kinds of tasks: name -> item, with calls and instructions. A new kind gets a place in AnyItem and SCORERS.

Kinds without a scorer are scored elsewhere: unit_tests in a subprocess, judge by a server, record by an environment."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from model_ops.jobs import ModelError
from model_ops.tasks.call_forms import Call, calls_in
from model_ops.tasks.item import Item, JudgedItem, RecordItem
from model_ops.tasks.text_match import (
    CompliesItem,
    ContainsItem,
    ExactItem,
    JsonItem,
    NumberItem,
    RefusesItem,
    RegexItem,
    score_contains,
    score_exact,
    score_json,
    score_number,
    score_refusal,
    score_regex,
)
from model_ops.tasks.unit_tests import UnitTestsItem

IGNORED_IN_STRINGS = re.compile(r"[ ,./\-_*^]")


class FunctionCallItem(Item):
    """A question that is answered by function calls."""

    kind: Literal["function_call"] = "function_call"
    accepted: list[dict[str, dict[str, list[Any]]]]
    """For each expected call {function: {argument: [accepted values]}}, as in BFCL's files of answers. []: no call is right."""
    any_call: bool = False
    """Whether some call is right, whatever it is, as in BFCL's files of relevance."""


def score_call(item: FunctionCallItem, text: str) -> float:
    """1.0 if calls and accepted calls match one to one, in any order, else 0.0."""
    calls = calls_in(text, item.tools)
    if item.any_call:
        return float(bool(calls))
    if len(calls) != len(item.accepted):
        return 0.0
    left = list(item.accepted)
    for call in calls:
        fitting = next((accepted for accepted in left if _fits(call, accepted)), None)
        if fitting is None:
            return 0.0
        left.remove(fitting)
    return 1.0


def accepted_calls(message: dict[str, Any]) -> list[dict[str, dict[str, list[Any]]]]:
    """What FunctionCallItem accepts where an assistant's message is right. Raises ValueError as `calls_as_text` does."""
    calls = map(_call, message.get("tool_calls") or [])
    return [{name: {key: [value] for key, value in arguments.items()}} for name, arguments in calls]


def calls_as_text(message: dict[str, Any]) -> str:
    """An assistant's message as `score_call` reads it: calls in <tool_call> blocks. Calls in the text stay what they are.
    Raises ValueError for arguments that are no JSON object."""
    if not message.get("tool_calls"):
        return message.get("content") or ""
    calls = [_call(call) for call in message["tool_calls"]]
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>{call}</tool_call>" for call in written)


def _call(call: dict[str, Any]) -> Call:
    arguments = call["function"].get("arguments") or {}
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments of a call are a JSON object")
    return Call(call["function"]["name"], arguments)


def _fits(call: Call, accepted: dict[str, dict[str, list[Any]]]) -> bool:
    for name, arguments in accepted.items():
        if _plain_name(name) != _plain_name(call.name):
            return False
        given = set(call.arguments)
        needed = {argument for argument, values in arguments.items() if "" not in values}
        return needed <= given <= set(arguments) and all(
            any(_same(call.arguments[argument], value) for value in arguments[argument]) for argument in given
        )
    return False


def _plain_name(name: str) -> str:
    """Many APIs allow no dot in a function's name, so templates replace it."""
    return name.replace(".", "_")


def _same(given: Any, accepted: Any) -> bool:
    if isinstance(given, bool) or isinstance(accepted, bool):
        return given is accepted
    if isinstance(given, str) and isinstance(accepted, str):
        return _plain_text(given) == _plain_text(accepted)
    if isinstance(given, list | tuple) and isinstance(accepted, list | tuple):
        return len(given) == len(accepted) and all(map(_same, given, accepted))
    if isinstance(given, dict) and isinstance(accepted, dict):
        # inside an object, accepted values are lists as well
        values = {name: value if isinstance(value, list) else [value] for name, value in accepted.items()}
        needed = {name for name, value in values.items() if "" not in value}
        return needed <= set(given) <= set(values) and all(
            any(_same(given[name], value) for value in values[name]) or _same(given[name], accepted[name]) for name in given
        )
    return type(given) in (int, float, type(None)) and type(accepted) in (int, float, type(None)) and given == accepted


def _plain_text(text: str) -> str:
    return IGNORED_IN_STRINGS.sub("", text).lower().replace("'", '"')


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


def is_known_instruction(name: str) -> bool:
    """Whether answers can be checked for an instruction of IFEval, also as M-IFEval names it. Japanese has sentences and words
    that these checks do not count."""
    return _bare(name) in CHECKS and not name.startswith("ja:")


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


def _sentences(text: str) -> int:
    return len([each for each in re.split(r"(?<=[.!?])[\"')\]]*\s+|\n{2,}", text) if re.search(r"\w", each)])


def _first_word(text: str, given: Mapping[str, Any]) -> bool:
    paragraphs = [each for each in re.split(r"\n\n", text) if each.strip()]
    nth, wanted = int(given["nth_paragraph"]), given["first_word"].lower()
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
    "keywords:forbidden_words": lambda text, given: (
        not any(re.search(rf"\b{re.escape(each)}\b", text, re.IGNORECASE) for each in given["forbidden_words"])
    ),
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


AnyItem = (
    NumberItem
    | FunctionCallItem
    | JsonItem
    | ExactItem
    | RegexItem
    | ContainsItem
    | InstructionsItem
    | RefusesItem
    | CompliesItem
    | UnitTestsItem
    | JudgedItem
    | RecordItem
)

ITEMS: dict[str, type[AnyItem]] = {item.model_fields["kind"].default: item for item in get_args(AnyItem)}
"""Kind -> its item."""

SCORERS: dict[str, Callable[[Any, str], float]] = {
    "number": score_number, "function_call": score_call, "json_schema": score_json, "exact": score_exact,
    "regex": score_regex, "contains": score_contains, "ifeval": score_instructions, "refuses": score_refusal,
    "complies": score_refusal,
}  # fmt: skip
"""Kind -> (item, answer) -> score from 0 to 1."""

_ADAPTER: TypeAdapter[AnyItem] = TypeAdapter(Annotated[AnyItem, Field(discriminator="kind")])


def read_items(path: Path) -> list[AnyItem]:
    """The items of a tasks.jsonl. Raises ModelError for a line that is no item; the message names the line."""
    items = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: materialize eval_suite again") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                items.append(_ADAPTER.validate_json(line))
            except ValidationError as error:
                field = ".".join(map(str, error.errors()[0]["loc"])) or "the line"
                raise ModelError(
                    f"{path} line {number}: {field} does not fit an evaluation item; materialize eval_suite again"
                ) from error
    return items
