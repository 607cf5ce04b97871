r"""The names under which gateways and products log a column: one table for all formats (docs/data.md prints it), compared word
by word: userId, x-user-id, metadata.user_id and {"user": {"id": ...}} are user_id. A value of another shape than the column's
is not read. Precedence: a path of the source's `fields`, what the format reads itself, what is read here.

    Reader(keys_read(form), fields).of({"user": "U2", "durationMs": 812, "billing": {"amount": 0.02}, ...})
    # {"named": {}, "found": {"user": "U2", "latency": 812.0}, "unread": ["billing.amount\tcost"], "clashes": []}
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile, islice
from typing import Any

from resources.records.json_paths import Steps, path_of, steps_of, structure_in, value_at
from resources.records.moments import is_moment
from resources.records.polarity import SAID, good_end, plain_word

Path = tuple[str, ...]
NamedValue = tuple[int, int, Path, Any]
"""How specific a name is (0: most), the length of its path, the path and the value."""

BESIDE = "beside"
"""Key under which a record that `fields` maps has what is left of it."""

_MS = {
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1e3),
    **dict.fromkeys(("us", "micros", "microseconds"), 1e-3),
    **dict.fromkeys(("ns", "nanos", "nanoseconds"), 1e-6),
}
_LEAST_MS, _MOST_MS = 20, 86_400_000
"""A duration without a unit is read as milliseconds from 20 on: below, and up to 1,000 with a fraction, it may be seconds."""
_SIDES = {
    "up": ("up", "upvote", "upvoted", "like", "liked", "good", "positive", "thumbsup", "thumbup"),
    "down": ("down", "downvote", "downvoted", "dislike", "disliked", "bad", "negative", "thumbsdown", "thumbdown"),
}
_NOBODY = {"", "null", "none", "nil", "undefined", "n/a", "unknown", "anonymous", "-"}


def _word(name: str, value: Any) -> str | None:
    """An id or a name: a short text of few words, or a whole number; of a thread, a number is the program's."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > 200 or value.strip().lower() in _NOBODY:
        return None
    value = value.strip()
    if "thread" in name and value.isdecimal():
        return None
    return None if re.search(r"[\n?!{\[]|^https?://", value) or len(value.split()) > 3 else value


def _time(name: str, value: Any) -> str | None:
    text = json.dumps(value) if isinstance(value, dict) else value
    return str(text) if is_moment(text) else None


def _number(value: Any) -> float | None:
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}(\.\d{1,15})?(e-?\d{1,2})?", value.strip(), re.I):
        value = float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18 else None


def _milliseconds(name: str, value: Any) -> float | None:
    """A duration: a number whose name has its unit, a text with a unit, or a number that can only be milliseconds."""
    unit = next((_MS[word] for word in reversed(name.split("_")) if word in _MS), None)
    if isinstance(value, str) and (written := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value.strip().lower())):
        value, unit = float(written[1]), _MS.get(written[2])
        if unit is None:
            return None
    number = _number(value)
    if number is None or (unit is None and (number < _LEAST_MS or (number < 1000 and number % 1))):
        return None
    return number * (unit or 1.0) if number * (unit or 1.0) <= _MOST_MS else None


def _cost(name: str, value: Any) -> float | None:
    number = _number(value.strip().removeprefix("$") if isinstance(value, str) else value)
    if number is not None and not {"cents", "cent"}.isdisjoint(name.split("_")):
        number /= 100
    return number if number is not None and number < 1e5 else None


def _count(name: str, value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _status(name: str, value: Any) -> str | None:
    word = str(value).strip().lower() if isinstance(value, str | int) else ""
    if re.fullmatch(r"[1-5]\d\d", word):
        return "success" if word < "400" else "failure"
    if word in ("success", "succeeded", "ok", "completed", "true"):
        return "success"
    return "failure" if word in ("failure", "failed", "error", "timeout", "false") else None


def _hit(name: str, value: Any) -> bool | None:
    return (
        value
        if isinstance(value, bool)
        else {"hit": True, "miss": False, "true": True, "false": False}.get(value.strip().lower())
        if isinstance(value, str)
        else None
    )


def _feedback(name: str, value: Any) -> str | None:
    said = str(value).strip().lower()
    kind, _ = SAID.get(plain_word(said), ("", 0))
    if (side := _side(name)) and kind != "side":
        return side if said in ("true", "yes", "1", "1.0") else None
    if isinstance(value, str):
        return said if kind in ("side", "truth") or re.fullmatch(r"[-+]?\d{1,4}(\.\d+)?", said) else None
    return str(value).lower() if isinstance(value, bool | int | float) else None


def _side(name: str) -> str | None:
    """The value of a flag that only one side of feedback sets; None for a name of both sides."""
    sides = [value for value, words in _SIDES.items() if not {*words}.isdisjoint(name.split("_"))]
    return sides[0] if len(sides) == 1 else None


@dataclass(frozen=True)
class Column:
    """A column that other names are read for."""

    title: str
    """What it is, in the table of docs/data.md."""
    names: tuple[str, ...]
    """The most specific first: where two contradict, the first is read."""
    shape: Callable[[str, Any], Any]
    """The value as the column has it; None for a value of another shape."""
    looks: str
    """What words a key has that nothing reads and that may be this column: it is proposed for `fields`."""
    rivals: frozenset[str]
    """Names that mean the same: where two of them differ in a record, it is said."""


def _column(title: str, shape: Callable[[str, Any], Any], names: str, looks: str = r"(?!)", rivals: str = "") -> Column:
    return Column(title, tuple(names.split()), shape, looks, frozenset(rivals.split()))


COLUMNS: dict[str, Column] = {
    "user": _column(
        "the user, of whom a hash is kept",
        _word,
        """
            user_id end_user_id external_user_id user_uuid uid end_user external_user user customer_id customer user_email
            user_name
        """,
        r"(user|customer|requester|account_name|caller|member|login|email|actor)(?!_?(agent|type|plan|tier|role|count|text|message|msg|query|input"
        r"|feedback|rating|segment|lang|locale|country))",
        "user_id end_user_id uid end_user user",
    ),
    "session": _column(
        "id of the session",
        _word,
        "session_id session conversation_id conversation conv_id convo_id chat_id thread_id dialog_id dialogue_id",
        "session|conv(o|ersation)?(_|$)|thread_?(id|key|ts)|dialog|ticket|case_?id",
    ),
    "time": _column(
        "time of the request",
        _time,
        """
            timestamp ts timestamp_ms ts_ms ts_millis created_at created start_time started_at request_timestamp
            request_created_at request_time logged_at event_time time datetime date
        """,
        r"time|date|_at$|\bwhen|^ts(_|$)|epoch",
    ),
    "id": _column(
        "a second id of the request, which feedback may name",
        _word,
        "request_id log_id generation_id call_id completion_id message_id interaction_id id",
        "(request|call|message|log)_(id|uuid|key)",
    ),
    "trace": _column("id of the trace", _word, "trace_id correlation_id"),
    "model": _column(
        "name of the model",
        _word,
        "response_model model request_model requested_model model_name model_id ai_model deployment",
        "model|engine|deployment",
    ),
    "provider": _column(
        "name of the provider",
        _word,
        "provider_name provider model_provider custom_llm_provider llm_provider ai_org gen_ai_system vendor",
        "provider|vendor|upstream",
    ),
    "latency": _column(
        "time until the whole answer, in ms; the key or the text may name another unit",
        _milliseconds,
        """
            latency_ms duration_ms response_time_ms elapsed_ms total_time_ms time_ms delay_ms latency_s duration_s
            response_time_s elapsed_s total_time_s time_s latency_seconds duration_seconds elapsed_seconds ms_to_finish
            duration_ns llm_latency request_duration request_latency total_latency latency duration response_time elapsed
            elapsed_time total_time time_taken took_ms took latencies_request
        """,
        r"latency|duration|elapsed|took|_m?s$|millis|seconds",
    ),
    "ttft": _column(
        "time until the first token, in ms; the key or the text may name another unit",
        _milliseconds,
        """
            ttft_ms time_to_first_token_ms time_to_first_token_s time_to_first_token first_token_ms ttft_s ttft
            ms_to_first_chunk first_token_latency_ms first_token_latency
        """,
        "first_(token|chunk|byte)",
    ),
    "cost": _column(
        "cost of the request, in US dollars",
        _cost,
        """
            cost_usd total_cost_usd cost_in_usd response_cost total_cost request_cost cost usage_cost price_usd price spend
            usd cost_cents
        """,
        r"^(?!.*(micros?|milli\w*|nano\w*|credits?|tokens?|currency|eur|gbp|jpy|cny|inr|chf|cad|aud|brl|krw)(_|$))"
        "(.*_)?(cost|price|spend|billing|charge|amount)",
        "cost_usd total_cost_usd response_cost total_cost cost",
    ),
    "prompt_tokens": _column(
        "tokens of the prompt",
        _count,
        """
            prompt_tokens input_tokens tokens_in tokens_prompt prompt_token_count input_token_count token_count_prompt
            req_units request_tokens tokens_input tokens_sent
        """,
        "(prompt|input|in|request).*tok|tok.*(prompt|input|in$)",
    ),
    "completion_tokens": _column(
        "tokens of the answer",
        _count,
        """
            completion_tokens output_tokens tokens_out tokens_completion completion_token_count output_token_count
            token_count_completion res_units response_tokens tokens_output tokens_received
        """,
        "(completion|output|out|response|answer).*tok|tok.*(completion|output|out$)",
    ),
    "cached_tokens": _column(
        "tokens of the prompt that came from a cache",
        _count,
        "cached_tokens cache_read_input_tokens cached_input_tokens prompt_cache_read_tokens native_tokens_cached",
    ),
    "reasoning_tokens": _column("tokens of the reasoning", _count, "reasoning_tokens native_tokens_reasoning thinking_tokens"),
    "status": _column(
        "whether the call failed: an HTTP status from 400 on, false, or a word such as error",
        _status,
        "status_code http_status response_status_code response_status status is_success success",
        "status|outcome|success|failed|error",
    ),
    "cache_hit": _column("whether the answer came from a cache", _hit, "cache_hit cached cache_status from_cache"),
    "feedback": _column(
        "feedback on the answer: a thumb, a number, true or false",
        _feedback,
        """
            user_feedback feedback_value feedback_thumb feedback_rating feedback_score feedback thumbs thumb thumbs_up
            thumb_up thumbs_down thumb_down user_rating rating vote stars liked like disliked dislike helpful reaction csat
            user_score
        """,
        "feedback|rating|thumb|vote|star|like|helpful|satisf|csat|reward|score|quality",
        "user_feedback feedback thumbs thumb rating vote",
    ),
}
FIELDS = {*COLUMNS, "workload"} - {"trace", "cached_tokens", "reasoning_tokens", "cache_hit"}
"""The columns whose path a source's `fields` may name beside what the format reads."""
_CONTAINERS_TEXT = """
    x ai gen llm cf aig helicone portkey langfuse litellm openrouter kong openinference traceloop association amzn vercel
    metadata meta context extra extras attributes attrs properties property props tags labels headers header info details
    data custom telemetry beside metrics stats usage request response req res log event proxy payload payloads http settings
    statistics spend logs
"""
CONTAINERS = frozenset(_CONTAINERS_TEXT.split())
"""Words in front of a name that only say where it stands."""
LABELS = {
    "metadata", "meta", "context", "extra", "extras", "attributes", "attrs", "properties", "property", "props", "tags",
    "labels", "info", "details", "custom", "settings", "event",
}  # fmt: skip
BARE = frozenset(("status", "success", "is_success", "price", "rating", "stars", "like", "customer", "deployment"))
"""Names that mean something else in LABELS, where a business speaks of itself."""
_BODIES_TEXT = """
    messages message prompt prompts completion completions choices input inputs output outputs contents content candidates
    generations tools functions body response_body request_body requestbody responsebody modelinput modeloutput instructions
    conversation_history conversations history system question answer text texts embedding trajectory traj parts token_ids
    prompt_token_ids completion_token_ids logprobs model_parameters system_prompt instruction chosen rejected prompt_messages
    full_request full_response documents events chunks chat_history
"""
BODIES = frozenset(_BODIES_TEXT.split())
"""Keys of contents, and what is below them: no column, and never listed as unread."""
_LOGGED = {"metadata", "headers", "extraheaders", "extrabody", "extra", "tags", "labels", "properties", "attributes"}
_VALUES = {"value", "score", "id", "name", "key", "code", "amount", "total", "at", "ms", "seconds", "usd", "type", "handle"}
"""Last words of a path that say nothing themselves: what stands before them may."""
_DEEP, _MOST = 4, 60
_KEY = re.compile(r"(?!.*(\d{6}|[\da-f]{8}-[\da-f]{4}-|[\da-f]{16}))[\w$.:/-]{1,40}", re.I)
"""A key that a program chose: no sentence, address, UUID or long number."""


@lru_cache(maxsize=8192)  # the keys of a source are few, its records many
def words_of(path: Path) -> tuple[str, ...]:
    """The words of a path: ("Helicone-User-Id",) and ("helicone", "userId") are helicone, user, id."""
    return tuple(word.lower() for key in path for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+", key))


_NAMES = {
    name.replace("_", ""): (column, place, name)
    for column, settings in COLUMNS.items()
    for place, name in enumerate(settings.names)
}


@lru_cache(maxsize=4096)
def column_of(path: Path) -> tuple[str, int, str] | None:
    """The column that a path names, how specific the name is (0: most) and the name; None for other paths."""
    words = words_of(path)
    for begin in range(len(words)):
        if (named := _NAMES.get("".join(words[begin:]))) and not (named[2] in BARE and LABELS.intersection(words[:begin])):
            # a unit is a word of its own: `times` is not time_s
            return named if named[0] not in ("latency", "ttft") or "_".join(words[begin:]) == named[2] else None
        if words[begin] not in CONTAINERS:
            return None
    return None


@lru_cache(maxsize=4096)
def _may_be(path: Path) -> tuple[str, ...]:
    """The columns that the words of an unread path may mean."""
    words, last = "_".join(dropwhile(CONTAINERS.__contains__, words_of(path))), "_".join(words_of(path[-1:]))
    fitting = [name for name, column in COLUMNS.items() if name in FIELDS and re.search(column.looks, words)]
    return tuple(name for name in fitting if len(path) == 1 or last in _VALUES or re.search(COLUMNS[name].looks, last))


class Reader:
    """Reads the records of one format and source. read: dotted paths that the format reads itself."""

    def __init__(self, read: frozenset[str], fields: Mapping[str, str] | None = None):
        self._read = read
        self._is_read = lru_cache(maxsize=4096)(self._reads)
        self._fields: dict[str, Steps] = {name: steps_of(path) for name, path in (fields or {}).items() if name in FIELDS}

    def named(self, *records: dict[str, Any]) -> dict[str, Any]:
        """The columns that `fields` names, each from the first record that has it."""
        return {
            name: value
            for record in reversed(records)
            for name, steps in self._fields.items()
            if (value := _at(record, name, steps)) is not None
        }

    def of(self, record: dict[str, Any], *parts: dict[str, Any]) -> dict[str, Any]:
        """parts: the lines that the record was joined from."""
        by_fields = self.named(*parts, record)
        mapped = {_shown(tuple(map(str, steps))) for steps in self._fields.values()}
        columns: dict[str, list[NamedValue]] = {}
        unread: list[tuple[Path, Any]] = []
        for path, value in _leaves(record, ()):
            column = column_of(path)
            if column and (result := COLUMNS[column[0]].shape(column[2], value)) is not None:
                columns.setdefault(column[0], []).append((column[1], len(path), path, result))
            elif not (
                isinstance(value, dict)
                or (column and value is False)
                or self._is_read(path)
                or _shown(path) in mapped
                or self._maps_in(parts, path, value)
            ):
                unread.append((path, value))
        best = {name: min(values, key=lambda each: each[:2]) for name, values in columns.items()}
        if users := columns.get("user"):  # a name that is not the user's in the row: `forget` looks for it in the logs
            user = by_fields.get("user", self._first(users)[3])
            unread += [(path, result) for _, _, path, result in users if result != user and _shown(path) not in mapped]
        several = {name: values for name, values in columns.items() if len(values) > 1 and name not in by_fields}
        clashes = [clash for name, values in several.items() for clash in self._clashes(name, values)]
        is_foreign = any(_is_currency(path) and str(value).upper() not in ("USD", "US$", "$") for path, value in unread)
        if is_foreign:
            best.pop("cost", None)
        proposals = {_shown(path): _proposal(record, path, value, columns.keys() | by_fields.keys()) for path, value in unread}
        values = {name: result for name, (_, _, _, result) in best.items()} | ({"foreign_cost": True} if is_foreign else {})
        if "feedback" in values:
            values["feedback_name"] = _feedback_name(best["feedback"][2])
        if "feedback" in by_fields:
            by_fields["feedback_name"] = mapped_feedback_name(self._fields["feedback"])
        return {
            "named": by_fields,
            "found": values,
            "clashes": clashes,
            "unread": [f"{shown}\t{proposed}" for shown, proposed in islice(proposals.items(), _MOST)],
        }

    def _maps_in(self, parts: Sequence[dict[str, Any]], path: Path, value: Any) -> bool:
        """Whether `fields` names the value in a joined line: request.metadata.by of a pair stands at body.metadata.by."""
        tails = {path[1:]} if path[0] in ("request", "response") else set()
        there = [steps for steps in self._fields.values() if parts and inside_body(tuple(map(str, steps)), tails)]
        return any(value_at(part, steps) == value for part in parts for steps in there)

    def _first(self, values: list[NamedValue]) -> NamedValue:
        """Which is read: the format's own, else that of the most specific name."""
        return min([each for each in values if self._is_read(each[2])] or values, key=lambda each: each[:2])

    def _clashes(self, name: str, values: list[NamedValue]) -> Iterator[str]:
        first, _, winner, read = self._first(values)
        for place, _, path, other in values if sum(self._is_read(each[2]) for each in values) < 2 else ():
            if other != read and {COLUMNS[name].names[place], COLUMNS[name].names[first]} <= COLUMNS[name].rivals:
                yield f"{name}\t{_shown(winner)}\t{_shown(path)}"

    def _reads(self, path: Path) -> bool:
        in_body = path[0] in ("request", "response")
        if in_body and not (len(path) > 2 and "".join(words_of(path[1:2])) in _LOGGED):
            return True
        return any(".".join(path[:depth]) in self._read for depth in range(2 if in_body else 1, len(path) + 1))


def markdown() -> str:
    """The table of docs/data.md."""
    rows = [
        f"| `{name}`{'' if name in FIELDS else ' (no key of `fields`)'} | {column.title} | `{'`, `'.join(column.names)}` |"
        for name, column in COLUMNS.items()
    ]
    return "\n".join(["| column | what it is | names, the most specific first |", "|---|---|---|", *rows])


@lru_cache(maxsize=4096)
def _is_currency(path: Path) -> bool:
    *before, last = words_of(path) or ("",)
    return last == "currency" and {*before} <= CONTAINERS - LABELS | {"cost", "costs", "billing", "price"}


@lru_cache(maxsize=4096)
def _shown(path: Path) -> str:
    """The path as it is listed: a key that may be what a person wrote is *."""
    keys: list[str | int] = [key if _KEY.fullmatch(key) else "*" for key in path if key != BESIDE]
    return path_of(tuple(keys)).replace('["*"]', ".*").removeprefix(".")


def shown_leaves(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of a record by path, as unread keys are listed, and those of whole requests and responses under `body`."""
    return ((_shown(path), value) for path, value in _leaves(record, (), bodies=True))


def inside_body(path: Path, tails: Collection[Path]) -> bool:
    """Whether a path ends as one of the tails, below at least one key."""
    return any(path[depth:] in tails for depth in range(1, len(path)))


def _feedback_name(path: Path) -> str:
    name = (column_of(path) or ("", 0, "feedback"))[2]
    return "thumbs" if "thumb" in name or "like" in name else name.removeprefix("user_")


def mapped_feedback_name(steps: Steps) -> str:
    """`feedback`, or of a path of which more is not better, such as `evals.hallucination.score`, what it measures."""
    path = tuple(str(step) for step in steps)
    while path[1:] and path[-1].lower() in _VALUES:
        path = path[:-1]
    name = _name(path)
    return "feedback" if _side(name) or good_end(name) == 1 else name


def measured(name: str, steps: Steps, value: Any) -> Any:
    """The value at a path that `fields` names: of the column's shape, or feedback of any word."""
    path = tuple(str(step) for step in steps)
    shaped = COLUMNS[name].shape(_name(path), value) if name in COLUMNS else None
    if shaped is None and value is not None and not isinstance(value, dict | list | bool):
        if name == "feedback" and _side(_name(path)):
            return None
        if name in ("latency", "ttft"):
            return _number(value)
        if name in ("feedback", "user", "session", "id", "model", "provider", "time", "workload"):
            return str(value).strip() or None
    return shaped


def _at(record: dict[str, Any], name: str, steps: Steps) -> Any:
    """The column at a path; an attribute of a span has its dots in its name."""
    value = value_at(record, steps)
    return measured(name, steps, record.get(".".join(map(str, steps))) if value is None else value)


def _name(path: Path) -> str:
    """The name that a value has: a known one, else the last key that is more than `value`."""
    named = column_of(path)
    return named[2] if named else "_".join(words_of((path[:-1] if path[1:] and path[-1].lower() == "value" else path)[-1:]))


def _proposal(record: dict[str, Any], path: Path, value: Any, known: set[str]) -> str:
    """The field that would read an unread value, of those that the record does not have; "" if none fits or leads there."""
    if not all(map(_KEY.fullmatch, path)) or value_at(record, path) != value:
        return ""
    return next(
        (name for name in _may_be(path) if name not in known and COLUMNS[name].shape(_name(path), value) is not None), ""
    )


def _leaves(value: Any, path: Path, bodies: bool = False) -> Iterator[tuple[Path, Any]]:
    """A record's values by path: texts, numbers, and objects that may be times; bodies: of whole requests and responses too."""
    if isinstance(value, str) and path and value[:1] in "{[" and len(value) < 20_000:
        value = structure_in(value) or value
    if isinstance(value, list) and path:
        value = {
            key: _plain(each["value"])
            for each in value
            if isinstance(each, dict) and "value" in each and isinstance(key := each.get("key", each.get("name")), str)
        } or (value[0] if len(value) == 1 and isinstance(value[0], str | int) else value)
    if isinstance(value, dict):
        if path:
            yield path, value
        for key, each in value.items() if len(path) < _DEEP else ():
            if isinstance(key, str) and key and (not _is_content(key) or (bodies and _is_body(each))):
                yield from _leaves(each, (*path, key), bodies)
    elif value is not None and value != "" and path and value != []:
        yield path, value


def _is_body(value: Any) -> bool:
    body = structure_in(value) if isinstance(value, str) and value[:1] == "{" else value
    return isinstance(body, dict) and bool(_BODY_KEYS & body.keys())


@lru_cache(maxsize=4096)
def _is_content(key: str) -> bool:
    return "".join(words_of((key,))) in _CONTENTS


_BODY_KEYS = {"messages", "model", "choices", "contents", "candidates", "prompt", "input", "output"}
"""A whole request or response has one of them."""
_CONTENTS = frozenset(name.replace("_", "") for name in BODIES)


def _plain(value: Any) -> Any:
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
