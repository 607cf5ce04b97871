"""The recipe's `fields`: where records of no known format keep their request, answer, id and so on. A mapped record has the
keys of a known format: `openai_pairs`, `messages`, or `feedback`; bodies of another provider's API stay (`as_logged`). Without
a request, the fields are columns of records that a known format reads (`adds`).

    fields = FieldMapping(request="payload.request", response="payload.reply", id="uuid", time="created")
    fields.mapped(record)      # {"request": ..., "response": ..., ...}; or a text that says what the record lacks
"""

from __future__ import annotations

import ast
import base64
import json
import re
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from resources.records.json_paths import Steps, path_of, steps_of, structure_in, value_at
from resources.records.providers.streams import joined
from resources.records.streams import CHUNK, is_chunk
from resources.records.synonyms import BESIDE, mapped_feedback_name, measured, words_of

ROLES = {
    **dict.fromkeys(("human", "prompter", "customer"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "ai", "bot", "model", "agent"), "assistant"),
    "observation": "tool",
}
"""The OpenAI role for other names of a speaker (the macro openai_role has those of published data sets)."""


BODIES = {"lc", "object", "role", "tool_calls"}
MEASURES = {
    "status": "status", "cost": "cost_usd", "latency": "latency_ms", "ttft": "ttft_ms", "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens", "feedback": "feedback",
}  # fmt: skip
"""Fields whose value goes along under a name that has its unit."""
LISTS = {"messages", "contents", "choices", "candidates", "generations"}
"""Keys of bodies and messages: JSON with one of them, or with objects in one of these lists, is not what somebody said."""
UNREAD = {
    r"(?i)<(!doctype html|html|head|body|\?xml)\b|<error(response)?\b[^>]*>\s*<(code|error|message)\b"
    r"|<(center|h1|title)>\s*(<h1>)?\s*[45]\d\d (error|bad|not|internal|service|gateway|forbidden|unauthori|too|request|temp)": "an HTML or XML page",  # noqa: E501
    r"data: ?([{\[\"]|\S.*\n\s*data:)|event: ?[\w.]+\s*($|\n)": "the events of a stream that are not known",
    r"HTTP/\d\S* \d{3}\b[^\n]*\n[\w-]+:": "a response with its HTTP headers",
    r"b(['\"])\s*[{\[<].*\1$": "bytes in Python's notation",
    r"<[^<>]* at 0x[0-9a-f]+>$|<Response \[\d+[^\]]*\]>$|(\[object \w+\],?)+$|H4sI[\w+/]{20,}=*$"
    r"|\[?\w*(Completion|Message|Response|Result|Block|Choice|Candidate)(Chunk)?\((id|content|choices|candidates|generations|text|citations"
    r"|finish_reason|sdk_http_response|message)=.*\)\]?$|content=(['\"]).*(additional|response)_\w+=": "an object of a program in place of its content",  # noqa: E501
    r"""(?i)\{\s*["'](detail["']\s*:\s*("[^"]*"|'[^']*'|\[.*\])|(errormessage|__type)["']\s*:.*|message["']\s*:\s*["'][^"']*(error"""
    r"""|time(d )?out|unavailable|forbidden|too many|authori[sz]|denied|not found|exceed|expired|missing)[^"']*["'])\s*\}$"""
    r"""|\{(?=.*["'](message|detail)["'])[^{}]*["'](statuscode|status_code|status|code)["']\s*:\s*["']?[45]\d\d\b[^{}]*\}$""": "an error in place of an answer (take a text as it is with prompt or answer)",  # noqa: E501
}
"""What stands where a body may stand and is none, by how it begins."""


def measure_key(name: str, steps: Steps) -> str:
    return mapped_feedback_name(steps) if name == "feedback" else MEASURES[name]


def _checked(path: str) -> str:
    steps_of(path)
    return path


Path = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(_checked)]


class FieldMapping(BaseModel):
    """Paths to the fields of a record: keys joined by dots, positions in brackets, such as `payload.items[0].text`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    request: Path | None = Field(None, description="The request: an OpenAI body, a list of messages, or a text. Left out: none")
    messages: Path | None = Field(
        None, description="Instead of `request`: a list of messages; without `response`, a whole conversation. Left out: none"
    )
    prompt: Path | None = Field(None, description="Instead of `request`: a text, taken as it is. Left out: none")
    system: Path | None = Field(None, description="Text of the system prompt. Left out: none")
    tools: Path | None = Field(None, description="List of the tools offered. Left out: those in the request")
    response: Path | None = Field(
        None, description="The response: an OpenAI body, a message, the chunks of a stream, or a text. Left out: none"
    )
    answer: Path | None = Field(None, description="Instead of `response`: a text, taken as it is. Left out: none")
    id: Path | None = Field(None, description="Id of the request, which feedback may name. Left out: the response's own")
    time: Path | None = Field(
        None, description="Time of the request, in any usual form. Left out: the response's own, or the file's day"
    )
    model: Path | None = Field(None, description="Name of the model. Left out: the response's or request's own")
    user: Path | None = Field(None, description="The user, of whom a hash is kept. Left out: the request's own")
    session: Path | None = Field(None, description="Id of the session. Left out: each request is one")
    workload: Path | None = Field(None, description="Name of the workload, as under `workloads`. Left out: the recipe's")
    feedback: Path | None = Field(
        None, description="Feedback on the answer: a number, true or false, or a word such as up or dislike. Left out: none"
    )
    original: Path | None = Field(None, description="Of a source of edits: what the model said. Left out: id says it")
    correction: Path | None = Field(
        None, description="Of a source of edits: the answer as a person corrected it. Left out: the source has no edits"
    )
    provider: Path | None = Field(None, description="Name of the provider. Left out: the record's own")
    status: Path | None = Field(
        None, description="Whether the call failed: an HTTP status, false, or a word such as error. Left out: the record's own"
    )
    cost: Path | None = Field(None, description="Cost of the request in US dollars. Left out: the record's own")
    latency: Path | None = Field(
        None,
        description="Time until the whole answer: milliseconds, unless its name or text has a unit (duration_s, 1.2s). "
        "Left out: the record's own",
    )
    ttft: Path | None = Field(None, description="Time until the first token, as latency. Left out: the record's own")
    prompt_tokens: Path | None = Field(None, description="Tokens of the prompt. Left out: the response's own")
    completion_tokens: Path | None = Field(None, description="Tokens of the answer. Left out: the response's own")

    @model_validator(mode="after")
    def _sensible(self):
        asked = [name for name in ("request", "messages", "prompt") if getattr(self, name)]
        if len(asked) > 1:
            raise ValueError(f"give one of {' and '.join(asked)}: each names the request")
        if self.response and self.answer:
            raise ValueError("give one of response and answer: both name the answer")
        if not asked and (self.response or self.answer or self.system or self.tools):
            raise ValueError("the request is missing; give request, messages or prompt")
        if (self.original and not self.correction) or (self.correction and asked):
            raise ValueError(
                "original and correction name an edit of an answer of another source; give both, without a request"
            )
        if not self.given:
            raise ValueError("nothing can be read; give request and response, or a column such as user or cost")
        if self.prompt and not (self.response or self.answer):
            raise ValueError("prompt is given and the answer is missing; give response or answer")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def given(self) -> dict[str, str]:
        return self.model_dump(exclude_none=True)

    @property
    def adds(self) -> bool:
        """Whether the fields are only columns beside what a known format reads."""
        return not (self.request or self.messages or self.prompt)

    @cached_property
    def _steps(self) -> dict[str, Steps]:
        return {name: steps_of(path) for name, path in self.given.items()}

    def without_columns(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record without the keys that the paths begin with: some formats are known by all their keys."""
        return {key: value for key, value in record.items() if key not in self.begins}

    @cached_property
    def begins(self) -> frozenset[str | int]:
        return frozenset(steps[0] for steps in self._steps.values())

    def mapped(self, record: dict[str, Any]) -> dict[str, Any] | str:
        """The record in a known format's keys; or what it lacks, as the rest of a sentence."""
        try:
            return self._mapped(record)
        except _MissingError as missing:
            return str(missing)

    def as_logged(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The pair with its request and response as they are, where both are objects; else None."""
        if not (self.request and self.response):
            return None
        try:
            values = self._values(record)
            beside = self._beside_bodies(values)
        except _MissingError:
            return None
        beside |= {BESIDE: self._others(record), "feedback": None}
        values["response"] = joined(values["response"]) or values["response"]
        bodies = {
            name: structure_in(values[name]) if isinstance(values[name], str) else values[name]
            for name in ("request", "response")
        }
        return _without_none(beside | bodies) if all(isinstance(body, dict) for body in bodies.values()) else None

    def _values(self, record: dict[str, Any]) -> dict[str, Any]:
        return {name: value_at(record, steps) for name, steps in self._steps.items()}

    def _beside_bodies(self, values: dict[str, Any]) -> dict[str, Any]:
        """What a gateway writes next to a request and its response, in the keys of openai_pairs."""
        return {
            key: self._word(values, name)
            for key, name in (
                ("request_id", "id"),
                ("timestamp", "time"),
                ("user_id", "user"),
                ("session_id", "session"),
                ("workload_id", "workload"),
                ("feedback", "feedback"),
                ("provider", "provider"),
            )
        }

    def _others(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """What the record has beside the paths of the fields, and columns under the names that `synonyms` reads."""
        others = dict(record)
        for steps in self._steps.values():
            _without(others, steps)
        for name, path in self._steps.items():
            if name in MEASURES:
                others[measure_key(name, path)] = measured(name, path, value_at(record, path))
        return _without_none(others) or None

    def _mapped(self, record: dict[str, Any]) -> dict[str, Any]:
        values = self._values(record)
        beside = self._beside_bodies(values)
        if self.adds:
            if self.feedback:
                beside["feedback"] = measured("feedback", self._steps["feedback"], beside["feedback"])
            return self._feedback_alone(beside, values)
        beside |= {BESIDE: self._others(record), "feedback": None}
        request = self._request(values)
        request.update({name: value for name in ("model", "tools") if (value := self._extra(values, name)) is not None})
        if self.response or self.answer:
            return _without_none(beside | {"request": request, "response": self._response(values)})
        if "messages" not in request:
            raise self._missing("request", "a request without messages, and no response is named,")
        metadata = _without_none({"user_id": beside.pop("user_id")})
        beside |= {key: request.get(key) for key in ("messages", "tools", "model")}
        return _without_none(beside | {"id": beside.pop("request_id"), "metadata": metadata})

    def _feedback_alone(self, beside: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        if self.correction:
            if not values["correction"]:
                raise self._missing("correction")
            return _without_none(
                {**beside, "original": values.get("original"), "corrected": values["correction"], "user_id": None}
            )
        if not self.feedback or not (self.id or self.session):
            raise _MissingError("is read by no known format, and fields names no request")
        if beside["feedback"] is None:
            raise self._missing("feedback")
        if beside["request_id"] is None and beside["session_id"] is None:
            raise self._missing("id" if self.id else "session")
        name = mapped_feedback_name(self._steps["feedback"])
        return _without_none({**beside, "name": name, "value": beside["feedback"], "feedback": None})

    def _missing(self, name: str, why: str = "") -> _MissingError:
        return _MissingError(f"has {why or 'nothing'} at {getattr(self, name)} (fields: {name})")

    def _word(self, values: dict[str, Any], name: str) -> Any:
        value = values.get(name)
        if isinstance(value, dict | list) and name != "time":
            raise self._missing(name, "an object or list, where a text or number is needed,")
        if isinstance(value, str):
            return value.strip() or None
        return value if value is None or name in ("time", "feedback") else str(value)

    def _extra(self, values: dict[str, Any], name: str) -> Any:
        if name == "model":
            return self._word(values, name)
        value = values.get(name)
        return structure_in(value) if isinstance(value, str) else value

    def _request(self, values: dict[str, Any]) -> dict[str, Any]:
        name = next(name for name in ("request", "messages", "prompt") if getattr(self, name))
        value = values[name]
        if isinstance(value, str) and name != "prompt":
            value = request_in(structure_in(value)) or value
        if value is None or value == "":
            raise self._missing(name)
        if isinstance(value, str) and name == "request" and (why := unread(value)):
            raise self._missing(name, why)
        if isinstance(value, str) and name != "messages":
            body: dict[str, Any] | None = {"messages": [{"role": "user", "content": value}]}
        else:
            body = request_in(value) if name != "prompt" else None
        if body is None or (name == "messages" and not body.get("messages")):
            raise self._missing(
                name,
                {"prompt": "no text", "messages": "no list of messages"}.get(
                    name, "neither an OpenAI request, a list of messages nor a text"
                ),
            )
        return self._with_system(body, values)

    def _with_system(self, body: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        system = self._word(values, "system")
        if system is None:
            return body
        if "messages" not in body:
            return {**body, "instructions": system}  # a call of the Responses API
        others = [message for message in body["messages"] if message.get("role") not in ("system", "developer")]
        return {**body, "messages": [{"role": "system", "content": system}, *others]}

    def _response(self, values: dict[str, Any]) -> Any:
        name = "response" if self.response else "answer"
        value = joined(values[name]) or values[name] if name == "response" else values[name]
        if isinstance(value, str) and name == "response" and CHUNK not in value:
            value = response_in(structure_in(value)) or value
        if value is None or value == "" or value == {}:
            raise self._missing(name)
        if isinstance(value, str) and name == "response" and CHUNK not in value and (why := unread(value)):
            raise self._missing(name, why)
        if isinstance(value, str):
            return value if CHUNK in value and name == "response" else _answered({"role": "assistant", "content": value})
        body = response_in(value) if name == "response" else None
        if body is None:
            raise self._missing(name, "no text" if name == "answer" else "neither an OpenAI response, a message nor a text")
        return body


class _MissingError(Exception):
    """A record is not as the fields say."""


def _without(record: dict[str, Any], steps: Steps) -> None:
    """Takes the value at a path out of a record, and leaves what else the record has, also in JSON texts and lists."""
    inner: Any = record
    for place, step in enumerate(steps):
        step = int(step) if isinstance(inner, list) and str(step).lstrip("-").isdecimal() else step
        try:
            value = inner[step]
        except (LookupError, TypeError):
            return
        if place == len(steps) - 1:
            inner[step] = None
            return
        value = structure_in(value) if isinstance(value, str) else value
        if not isinstance(value, dict | list):
            return
        inner[step] = inner = value.copy()


def _without_none(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def unread(text: str) -> str:
    """What a text is that stands where a body may stand and is none; "" for what a person or a model says."""
    text = text.strip().removeprefix("\ufeff")
    for begins, what in UNREAD.items():
        if re.match(begins, text, re.DOTALL):
            return what
    if (inner := _decoded(text)) and unread(inner):
        return "an encoded body"
    parsed = structure_in(text) or _begun(text)
    if parsed is None and re.match(r"""\s*"?\s*(\{\s*(\\*"|'|\}|$)|\[\s*([{\["']|\\+"|\]|$))""", text):
        return "JSON that breaks off or does not parse (take a text as it is with prompt or answer)"
    objects = [parsed, *parsed] if isinstance(parsed, list) else [parsed]
    objects += [each for inner in objects[1:] if isinstance(inner, list) for each in inner]
    return (
        "JSON of a form that is not known"
        if any(
            isinstance(each, dict) and (each.keys() & BODIES or any(_objects(each.get(name)) for name in LISTS))
            for each in objects
        )
        else ""
    )


def _decoded(text: str) -> str:
    """What a text of base64 or of percent signs alone holds; "" for any other."""
    if re.match(r"(?i)%(7b|5b)\S+$", text):
        return unquote(text)
    if re.match(r"(ey|ew|W3|Ww)[\w+/]{14,}=*$", text):
        with suppress(ValueError):
            return base64.b64decode(text[: len(text) // 4 * 4]).decode()  # of a cut text, what is whole
    return ""


def _begun(text: str) -> Any:
    """The JSON object or list before prose or further JSON, or that in Python's notation; None for any other text."""
    for read in (lambda: json.JSONDecoder().raw_decode(text)[0], lambda: ast.literal_eval(text)):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            if isinstance(parsed := read(), dict | list):
                return parsed
    return None


def _objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


_ASKED, _SAID = (
    re.compile(rf"((raw|full|llm|openai|chat|api|model|http)_)*({names})(_(body|json|payload|data|raw))*")
    for names in (
        "req|requests?|messages|inputs?|prompt|query|question",
        "res|resp|responses?|outputs?|completion|reply|answer|result",
    )
)


@lru_cache(maxsize=4096)
def _side_named(key: str) -> str:
    words = "_".join(words_of((key,)))
    return "request" if _ASKED.fullmatch(words) else "response" if _SAID.fullmatch(words) else ""


def wrapped_pair(record: dict[str, Any], with_texts: bool = False) -> dict[str, str] | None:
    """The keys of a request's body and of its response, as `fields` names them, where they have other names than a format's,
    such as `req` and `resp`; None without both. with_texts: the request may also be a text."""
    keys: dict[str, str] = {}
    for key, value in record.items():
        side = _side_named(key)
        if side == "request":
            body = structure_in(value) if isinstance(value, str) else value
            is_text = with_texts and isinstance(value, str) and body is None
            side *= is_text or request_in(body) is not None or (isinstance(body, dict) and "contents" in body)
        if side:
            keys.setdefault(side, key)
    return {side: path_of((key,)) for side, key in keys.items()} if len(keys) == 2 else None


def request_in(value: Any) -> dict[str, Any] | None:
    """A request body, from a body, a message or a list of messages; None for anything else."""
    if isinstance(value, list):
        spoken = [_message(each) for each in value]
        return {"messages": spoken} if spoken and None not in spoken else None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("messages"), list):
        inner = request_in(value["messages"])
        return {**value, **inner} if inner else None
    if isinstance(value.get("input"), str | list):  # the Responses API
        return dict(value)
    if isinstance(value.get("prompt"), str):
        rest = {key: each for key, each in value.items() if key != "prompt"}
        return {**rest, "messages": [{"role": "user", "content": value["prompt"]}]}
    message = _message(value)
    return {"messages": [message]} if message else None


def _message(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    speaker = next((value[key] for key in ("role", "from", "speaker", "author") if isinstance(value.get(key), str)), None)
    if speaker is None:
        return None
    content = next((value[key] for key in ("content", "value", "text", "message") if key in value), None)
    others = {
        key: value[key]
        for key in ("name", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "weight")
        if value.get(key) is not None
    }
    role = speaker.strip().lower()
    return {"role": ROLES.get(role, role), "content": content, **others}


def response_in(value: Any) -> Any:
    """A response body, from a body, a message or a stream's chunks; None for anything else."""
    if isinstance(value, list):
        if any(map(is_chunk, value)):
            return value
        return response_in(value[0]) if len(value) == 1 else None
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    if choices == [] or _objects(choices) or isinstance(value.get("output"), list) or value.get("error"):
        return value
    if isinstance(value.get("message"), dict):  # a choice, or Ollama's response
        message = _message({"role": "assistant", **value["message"]})
        ended = value.get("finish_reason") or value.get("done_reason") or ("not_done" if value.get("done") is False else None)
        return _answered(message, ended, value) if message else None
    if isinstance(value.get("content"), str | list) or value.get("tool_calls"):
        return _answered(_message({"role": "assistant", **value}))
    return None


def _answered(message: dict[str, Any] | None, finish_reason: Any = None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    given = {key: body[key] for key in ("id", "model", "created", "usage") if body.get(key) is not None} if body else {}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason if isinstance(finish_reason, str) else None}
    return {**given, "choices": [choice]}
