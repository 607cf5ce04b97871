"""Turns wrong values of a recipe into problems that name the key, its value unless it may be a secret, and what is accepted.
pydantic takes `"8"` and `true` for a number; a recipe does not, as the JSON schema of editors does not."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipelines.contract.keys import (
    INSTEAD,
    VALUE_INSTEAD,
    Key,
    Kind,
    accepted,
    keys_of,
    kind_at,
    kind_below,
    meant_by,
    options,
    section_in,
    tag_of,
    takes_null,
    without_tags,
)
from pipelines.contract.text import Place, RecipeProblem, RecipeText, dotted

NOT_SHOWN = {"uri", "base_url", "api_key_env", "prompt", "request"}
"""Keys whose values may hold a secret or a person's text."""
_SECRET = re.compile(r"://|@|secret|password|passwd|^sk-|api_?key", re.IGNORECASE)
MOST_LISTED = 30
"""Keys that one sentence lists."""
YES_NO = ("yes", "no", "on", "off")
"""YAML 1.1's words for true and false; boolean keys accept them."""


def problems_in(model: type[BaseModel], text: RecipeText, error: ValidationError | None) -> list[RecipeProblem]:
    """All problems with the values of a recipe, unordered."""
    wrong = dict(_wrong_kinds(Kind(model), text.content, ()))
    problems = [
        RecipeProblem(_sentence(model, place, value), dotted(place), text.line_of(place)) for place, value in wrong.items()
    ]
    said = {(problem.key, problem.line) for problem in text.problems}
    items = error.errors(include_url=False) if error else []
    unknown = [without_tags(model, item["loc"]) for item in items if item["type"] == "extra_forbidden"]
    for item in items:
        place = without_tags(model, item["loc"])
        misspelt = item["type"] == "missing" and any(_explains(model, text, other, place) for other in unknown)
        if not misspelt and not any(place[: len(known)] == known for known in wrong):
            problems.extend(_problems_of(model, text, place, item))
    return [problem for problem in problems if (problem.key, problem.line) not in said]


def _explains(model: type[BaseModel], text: RecipeText, unknown: Place, missing: Place) -> bool:
    """Whether an unknown key is probably a missing key of the same section, misspelt."""
    if unknown[:-1] != missing[:-1]:
        return False
    return unknown[-1] == "enabled" or missing[-1] in [key.name for key in _meant(model, text, unknown)]


def _wrong_kinds(kind: Kind, value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Values that pydantic would convert to another type, and numbers that are not finite."""
    if isinstance(value, dict | list):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            expected = kind_below(kind, part)
            if expected is not None:
                yield from _wrong_kinds(expected, inner, (*place, part))
        return
    kinds = options(kind.annotation)
    number = int in kinds or float in kinds
    if isinstance(value, float) and not math.isfinite(value):
        wrong = True
    elif [Literal[False]] == kinds:
        wrong = not isinstance(value, bool)
    elif any(option in (str, Any) or get_origin(option) is Literal for option in kinds):
        wrong = False
    elif isinstance(value, bool):
        wrong = number
    elif isinstance(value, str):
        wrong = number or (bool in kinds and value.lower() not in YES_NO)
    else:
        wrong = isinstance(value, int | float) and bool in kinds
    if wrong:
        yield place, value


def _problems_of(model: type[BaseModel], text: RecipeText, place: Place, item: ErrorDetails) -> Iterator[RecipeProblem]:
    kind, value = item["type"], item["input"]
    if kind == "broken_rules":
        yield from placed(item["ctx"]["problems"], text)
    elif kind == "extra_forbidden":
        yield RecipeProblem(_unknown_key(model, text, place), dotted(place), text.line_of(place))
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        key = (*place, tag_of(model, place))
        yield RecipeProblem(_sentence(model, key, value.get(key[-1])), dotted(key), text.line_of(key))
    elif kind == "missing":
        whose = "every recipe needs it" if len(place) == 1 else f"{dotted(place[:-1])} needs it"
        yield RecipeProblem(f"is missing; {whose}", dotted(place), text.line_of(place[:-1]))
    elif place and place[-1] == "[key]":
        name = place[:-1]
        sentence = (
            "this is not a name; a name has a to z, 0 to 9, - and _, at most 63 of them, and begins and ends with a "
            "letter or a digit"
        )
        yield RecipeProblem(sentence, dotted(name), text.line_of(name))
    elif kind in ("value_error", "credentials"):
        sentence = item["msg"].removeprefix("Value error, ")
        while place not in text.lines and place[:-1] in text.lines:  # a key that a short form stands for
            place = place[:-1]
        yield RecipeProblem(sentence, dotted(place), _line_of_first_key(text, place, sentence))
    else:
        yield RecipeProblem(_sentence(model, place, value), dotted(place), text.line_of(place))


def placed(broken: Iterable[tuple[str | Place, str]], text: RecipeText) -> Iterator[RecipeProblem]:
    """(key, sentence) of broken rules, each with its line."""
    for key, sentence in broken:
        place = tuple(key.split(".")) if isinstance(key, str) else key
        yield RecipeProblem(sentence, dotted(place), text.line_of(place))


def _line_of_first_key(text: RecipeText, place: Place, sentence: str) -> int | None:
    """Line of the first key below `place` that a sentence about the section names."""
    for word in re.findall(r"[a-z_0-9]+", sentence):
        if (*place, word) in text.lines:
            return text.lines[*place, word]
    return text.line_of(place)


def _sentence(model: type[BaseModel], place: Place, value: Any) -> str:
    kind = kind_at(model, place)
    if kind is None:
        return "this value is not accepted here"
    key = dotted(tuple(part for part in place if isinstance(part, str)))
    if isinstance(value, str) and (instead := VALUE_INSTEAD.get((key, value))):
        return f"there is no {value} any more: {instead}"
    wanted = accepted(kind.annotation, kind.metadata)
    if value is None or value == "" or (isinstance(value, list | dict) and not value and _holds(kind, type(value))):
        return _empty(kind, place, value, wanted)
    section = section_in(kind.annotation)
    if section is not None:
        return f"it holds {_shown(place, value)}; {_as_section(section, place, value)}"
    fewest = next((limit.min_length for limit in kind.metadata if isinstance(limit, MinLen)), 0)
    if isinstance(value, list) and len(value) < fewest:
        return f"it holds {len(value)} of at least {fewest} items; give {wanted}"
    hint = ""
    if isinstance(value, str):
        hint = _without_quotes(value, kind.annotation) or _nearest_choice(value, kind.annotation)
    elif isinstance(value, int | float) and not isinstance(value, bool) and str in options(kind.annotation):
        hint = ", in quotes"
    return f"it holds {_shown(place, value)}; give {wanted}{hint}"


def _as_section(section: type[BaseModel], place: Place, value: Any) -> str:
    """What to write instead of a value, where a mapping of keys is expected."""
    name = dotted(place[-1:])
    if _has_switch(section) and (value is False or str(value).lower() in ("no", "off", "none", "disabled")):
        return f"write `{name}: {{enabled: false}}` to switch it off"
    needed = [key for key, field in section.model_fields.items() if field.is_required() or key == "uri"]
    if len(needed) == 1 and isinstance(value, str):
        return f"write `{name}: {{{needed[0]}: ...}}`"
    return f"give a mapping of keys, {_known_below(section)}"


def _has_switch(section: type[BaseModel]) -> bool:
    return "enabled" in section.model_fields and section.model_fields["enabled"].annotation is bool


def _holds(kind: Kind, container: type) -> bool:
    kinds = options(kind.annotation)
    section = container is dict and section_in(kind.annotation) is not None
    return section or any(get_origin(option) is container for option in kinds)


def _empty(kind: Kind, place: Place, value: Any, wanted: str) -> str:
    section = section_in(kind.annotation)
    if section is not None and value is None:
        if _has_switch(section):
            return (
                f"is empty; write `{place[-1]}: {{enabled: false}}` to switch it off, or leave the key out to take its defaults"
            )
        return "is empty; give its keys below it, or leave the key out to take its defaults"
    if section is not None:
        return f"is empty; give a mapping of keys, {_known_below(section)}"
    what = "at least one, as " + wanted if value in ([], {}) and wanted.startswith(("a list", "a mapping")) else wanted
    optional = kind.field is not None and not kind.field.is_required()
    return f"is empty; give {what}" + (", or leave the key out" if optional else "")


def _known_below(section: type[BaseModel]) -> str:
    return f"such as {', '.join(list(section.model_fields)[:3])}"


def _without_quotes(value: str, annotation: Any) -> str:
    kinds = options(annotation)
    if (int in kinds or float in kinds) and re.fullmatch(r"[-+]?[\d_]*\.?\d+([eE][-+]?\d+)?", value.strip()):
        return ", without quotes"
    if float in kinds and (percent := re.fullmatch(r"(\d+(?:\.\d+)?) ?%", value)):
        return f"; {value} is {float(percent.group(1)) / 100:g}"
    return ", without quotes" if bool in kinds and value.lower() in ("true", "false") else ""


def _nearest_choice(value: str, annotation: Any) -> str:
    choices = [str(choice) for option in options(annotation) if get_origin(option) is Literal for choice in get_args(option)]
    near = difflib.get_close_matches(value.lower(), choices, n=1)
    return f"; did you mean {near[0]}?" if near and len(choices) > 1 else ""


def _shown(place: Place, value: Any) -> str:
    if isinstance(value, dict | list):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        text = f"{value}"
        text = f".{text}" if text in ("nan", "inf") else "-.inf" if text == "-inf" else text
        return text if len(text) <= 40 else "a number of many digits"
    text = str(value)
    if any(part in NOT_SHOWN for part in place) or _SECRET.search(text) or len(text) > 40 or "\n" in text:
        return "a text that is not accepted"
    return f"{text!r}"


def _unknown_key(model: type[BaseModel], text: RecipeText, place: Place) -> str:
    *above, name = place
    section = kind_at(model, tuple(above)) or Kind(model)
    if instead := INSTEAD.get(dotted(place)):
        return f"there is no such key any more: {instead}"
    if name == "enabled":
        return _always_on(model, section, above)
    if "." in str(name):
        *sections, last = str(name).split(".")
        if kind_at(model, (*above, *sections, last)):
            return f"a key holds no dot; write {last} below {'.'.join(sections)}"
    if ":" in str(name):
        return "there is no such key; write one colon after a key, and a space after the colon"
    if 0 < len(meant := _meant(model, text, place)) <= 4:
        words = [key.name if key.path[:-1] == section.path else _as_written(key.path, above) for key in meant]
        return f"there is no such key; did you mean {' or '.join([', '.join(words[:-1]), words[-1]] if words[1:] else words)}?"
    known = sorted(getattr(section_in(section.annotation), "model_fields", {}))
    if len(known) <= MOST_LISTED:
        return f"there is no such key; known here: {', '.join(known)}"
    return f"there is no such key; `millrace schema --markdown` explains the {len(known)} keys of {dotted(tuple(above))}"


def _meant(model: type[BaseModel], text: RecipeText, place: Place) -> list[Key]:
    *above, name = place
    section = kind_at(model, tuple(above)) or Kind(model)
    given = {str(other[-1]) for other in text.lines if other[:-1] == tuple(above)}
    return meant_by(model, section.path, str(name), frozenset(given - {str(name)}))


def _as_written(path: tuple[str, ...], above: list[str | int]) -> str:
    """A schema path, with the recipe's own names filled in."""
    parts = [part if part != "*" else str(above[index]) if index < len(above) else "<name>" for index, part in enumerate(path)]
    return dotted(tuple(parts))


def _always_on(model: type[BaseModel], section: Kind, above: list[str | int]) -> str:
    if takes_null(section.annotation):
        return f"there is no such key; leave {dotted(tuple(above))} out to switch it off"
    switches = [".".join(key.path[:-1]) for key in keys_of(model) if key.name == "enabled" and key.annotation is bool]
    return f"there is no such key, because this cannot be switched off; what can is {', '.join(switches)}"
