"""Proposes a source's `fields` for records of no known format, from the names and shapes of their values: a guess to check,
never applied by a run."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from resources.records import FieldMapping, field_mapping, is_moment, json_paths, thumb_of

MOST_RECORDS = 100
_DEEPEST, _MOST_PATHS = 6, 400
_USUAL = 0.8
"""A field fits if it has the wanted shape in at least this share of the records."""
_LONG = 12
"""Mean characters of a text that may be a prompt or an answer though its name says nothing."""

_ASKED = re.compile(
    r"prompt|question|query|request|input|instruction|user_?(message|text|msg)|ask|utterance|messages?$|"
    r"conversation|dialog|history|chat$|turns$",
    re.I,
)
_SAID = re.compile(
    r"response|answer|output|completion|reply|generat|assistant|bot_?(message|text)|model_?(text|message)|"
    r"result|^text$|said",
    re.I,
)
_SAID_BY_A_MODEL = re.compile(r"model|bot|(^|_)ai(_|$)|llm|assistant|generat|draft|suggest|before|old|original|raw", re.I)
_SYSTEM = re.compile(r"system|preamble|persona", re.I)
_TIME = re.compile(r"time|date|(^|_)ts$|(^|_)at$|created|start|when|day$", re.I)
_ID = re.compile(r"(^|[_ ])(id|uuid|guid|rid)$|request_?id|trace_?id|^_id$|[a-z]Id$", re.I)
_NUMBER = re.compile(r"(^|[_ ])(no|nr|ref|key|number)\.?$", re.I)
_SESSION = re.compile(r"session|conversation|thread|chat_?id|dialog", re.I)
_USER = re.compile(r"user|^uid$|customer|account|caller|end_?user|e?mail|member", re.I)
_MODEL = re.compile(r"model|engine|deployment|llm$", re.I)
_FEEDBACK = re.compile(r"feedback|rating|thumb|score|stars?$|vote|like|reward|helpful|satisf|csat|quality", re.I)
_WORKLOAD = re.compile(r"workload|use_?case|^app(_?name|_?id)?$|^task$|feature", re.I)
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.I)


def proposed_fields(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Fields that fit most of the records, by name; {} if no request with an answer and no feedback is found."""
    records = records[:MOST_RECORDS]
    values: dict[tuple, list[Any]] = {}
    for record in records:
        _collect(record, (), values)
    seen = _Seen(values, len(records))
    paths = _contents(seen)
    for name, pattern, fits in (
        ("session", _SESSION, _is_word),
        ("user", _USER, _is_word),
        ("time", _TIME, is_moment),
        ("id", _ID, _is_word),
        ("model", _MODEL, _is_word),
        ("workload", _WORKLOAD, _is_word),
    ):
        paths[name] = seen.named(pattern, fits, distinct=name == "id")
    paths["id"] = paths["id"] or seen.named(_NUMBER, _is_word, distinct=True) or seen.shaped(_is_uuid)
    paths["time"] = paths["time"] or seen.shaped(_is_recent)
    before, after = paths.get("prompt"), paths.get("answer")
    if before and after and seen.are_versions(before, after):
        swapped = _SAID_BY_A_MODEL.search(str(after[-1])) is not None
        paths["original"], paths["correction"] = (after, before) if swapped else (before, after)
        of_requests = ("request", "response", "prompt", "answer", "system", "model")
        paths = {name: path for name, path in paths.items() if name not in of_requests}
    paths["feedback"] = seen.named(_FEEDBACK, _is_feedback, usual=0.0)
    return _useful({name: json_paths.path_of(path) for name, path in paths.items() if path}, records)


def _useful(paths: dict[str, str], records: Sequence[dict[str, Any]]) -> dict[str, str]:
    asked = any(name in paths for name in ("request", "messages", "prompt"))
    if not asked:
        paths = {
            name: paths[name]
            for name in ("id", "session", "time", "workload", "feedback", "original", "correction")
            if name in paths
        }
    try:
        fields = FieldMapping(**paths)
    except ValueError:
        return {}
    reads = sum(not isinstance(fields.mapped(record), str) for record in records)
    # most answers have no feedback, but a file of feedback has it everywhere
    return fields.given if records and reads >= _USUAL * len(records) else {}


class _Seen:
    def __init__(self, values: dict[tuple, list[Any]], records: int):
        self._values, self._records = values, records
        self._taken: set[tuple] = set()

    def shaped(self, fits: Callable[[Any], bool], pattern: re.Pattern | None = None) -> tuple | None:
        """The first path whose values fit, one whose name fits the pattern before the others."""
        paths = self._fitting(fits, _USUAL)
        paths = [path for path in paths if not any(path[:depth] in paths for depth in range(1, len(path)))]  # the whole body
        paths.sort(key=lambda path: not (pattern and _name_fits(pattern, path)))
        return self._take(paths)

    def named(
        self, pattern: re.Pattern, fits: Callable[[Any], bool], distinct: bool = False, usual: float = 0.5
    ) -> tuple | None:
        """The first path whose name and values fit, the least nested first. distinct: no value stands twice."""
        paths = self._fitting(fits, usual, pattern)
        if distinct:
            paths = [path for path in paths if len({str(value) for value in self._values[path]}) == len(self._values[path])]
        return self._take(sorted(paths, key=len))

    def _fitting(self, fits: Callable[[Any], bool], usual: float, pattern: re.Pattern | None = None) -> list[tuple]:
        """Free paths whose values fit, in the share `usual` of the records and nearly always where there is one."""
        return [
            path
            for path, values in self._values.items()
            if (pattern is None or _name_fits(pattern, path))
            and not self._overlaps(path)
            and (fitting := sum(map(fits, values))) >= max(usual * self._records, 1)
            and fitting >= _USUAL * len(values)
        ]

    def longest_texts(self, count: int) -> list[tuple]:
        """The longest texts that most records have, in the records' order."""
        texts = {
            path: sum(map(len, values)) / len(values)
            for path, values in self._values.items()
            if all(isinstance(value, str) for value in values)
            and len(values) >= _USUAL * self._records
            and not self._overlaps(path)
            and any(map(_is_prose, values))
            and (len(values) < 3 or len(set(values)) * 2 > len(values))
        }  # a name repeats, a text does not
        longest = sorted(texts, key=lambda path: -texts[path])[:count]
        return [path for path in texts if path in longest and texts[path] >= _LONG]

    def are_versions(self, one: tuple, other: tuple) -> bool:
        """Whether most texts at two paths share words: an answer and its correction, no question and its answer."""
        alike = []
        for texts in zip(self._values[one], self._values[other], strict=False):
            ours, theirs = ({*text.lower().split()} for text in texts)
            common = len(ours & theirs)
            alike.append(common > 1 and 3 * common >= max(len(ours), len(theirs)))
        return sum(alike) * 2 > len(alike)

    def _overlaps(self, path: tuple) -> bool:
        return any(path[: len(taken)] == taken or taken[: len(path)] == path for taken in self._taken)

    def take(self, path: tuple) -> tuple:
        self._taken.add(path)
        return path

    def _take(self, paths: list[tuple]) -> tuple | None:
        return self.take(paths[0]) if paths else None


def _name_fits(pattern: re.Pattern, path: tuple) -> bool:
    names = [step for step in path if isinstance(step, str)]
    return bool(names) and pattern.search(names[-1]) is not None


def _collect(value: Any, path: tuple, values: dict[tuple, list[Any]]) -> None:
    if path and value not in (None, "", [], {}):
        if path not in values and len(values) >= _MOST_PATHS:
            return
        values.setdefault(path, []).append(value)
    inner = json_paths.structure_in(value) if isinstance(value, str) else value
    if len(path) >= _DEEPEST:
        return
    if isinstance(inner, dict):
        for key, each in inner.items():
            if isinstance(key, str) and key:
                _collect(each, (*path, key), values)
    elif isinstance(inner, list) and len(inner) == 1:
        _collect(inner[0], (*path, 0), values)


def _contents(seen: _Seen) -> dict[str, tuple | None]:
    request, response = seen.shaped(_is_request, _ASKED), seen.shaped(_is_response, _SAID)
    paths: dict[str, tuple | None] = {"request": request, "response": response}
    if request is None:
        paths["system"] = seen.named(_SYSTEM, _is_prose)
        paths["prompt"] = seen.named(_ASKED, _is_prose, usual=_USUAL)
    if response is None:
        paths["answer"] = seen.named(_SAID, _is_prose, usual=_USUAL)
    if request is None and not paths["prompt"] and not response and not paths["answer"]:
        texts = seen.longest_texts(2)
        if len(texts) == 2:
            paths["prompt"], paths["answer"] = map(seen.take, texts)
    elif request is None and not paths["prompt"]:
        paths["prompt"] = next(map(seen.take, seen.longest_texts(1)), None)
    elif response is None and not paths["answer"] and not (request and _ends_with_answer(seen, request)):
        paths["answer"] = next(map(seen.take, seen.longest_texts(1)), None)
    if paths.get("prompt") and not (response or paths.get("answer")):
        paths["prompt"] = paths["system"] = None
    if request is not None and not (response or paths.get("answer")):
        paths["messages"], paths["request"] = request, None
    return paths


def _ends_with_answer(seen: _Seen, path: tuple) -> bool:
    values = seen._values[path]
    bodies = [
        field_mapping.request_in(json_paths.structure_in(value) if isinstance(value, str) else value) or {} for value in values
    ]
    ends = [(body.get("messages") or [{}])[-1].get("role") for body in bodies]
    return ends.count("assistant") * 2 > len(ends)


def _is_request(value: Any) -> bool:
    value = json_paths.structure_in(value) if isinstance(value, str) else value
    body = field_mapping.request_in(value)
    if body is None or (isinstance(value, dict) and field_mapping.response_in(value) is not None):
        return False
    asked = body.get("messages")
    return asked is None or not isinstance(value, list) or len(asked) > 1 or asked[0].get("role") != "assistant"


def _is_response(value: Any) -> bool:
    value = json_paths.structure_in(value) if isinstance(value, str) else value
    if isinstance(value, dict) and (isinstance(value.get("messages"), list) or value.get("role", "assistant") != "assistant"):
        return False
    return field_mapping.response_in(value) is not None


def _is_prose(value: Any) -> bool:
    if not isinstance(value, str) or json_paths.structure_in(value) is not None or is_moment(value) or _UUID.fullmatch(value):
        return False
    return " " in value.strip() or not value.isascii() or len(value) > _LONG * 4


def _is_word(value: Any) -> bool:
    return (isinstance(value, str) and len(value) <= 200 and "\n" not in value and json_paths.structure_in(value) is None) or (
        isinstance(value, int) and not isinstance(value, bool)
    )


def _is_recent(value: Any) -> bool:
    """A time that no other number is likely to be."""
    if isinstance(value, str):
        return is_moment(value) and not value.isdecimal()
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and any(1_400_000_000 <= value / scale <= 2_200_000_000 for scale in (1, 1e3))
    )


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _is_feedback(value: Any) -> bool:
    if isinstance(value, str):
        return thumb_of(value) is not None or re.fullmatch(r"-?\d+(\.\d+)?", value.strip()) is not None
    return isinstance(value, bool | int | float)
