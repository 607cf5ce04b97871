"""Log formats: how to recognise a record of each, and what its SQL fills. docs/data.md describes them for users. A new format
is a predicate here, its row in FORMATS, and sql/reading/formats/<name>.sql with the sections `interactions` and `feedback`,
each one select from `records` (object, row, raw), with columns of `no_interactions` and `no_feedback` in sql/reading/batch.sql.
Every record must give at least one row; `error_code` and `message` say what it lacks. (Put an expression that parses `raw`
again into one `case` and name it once: DuckDB evaluates it for every row where it occurs twice.)"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from model_ops.chat_apis import anthropic_api, bodies, is_pair, objects
from resources.records.edits import has_prompt, is_edit, lacks_correction, sides_of
from resources.records.field_mapping import wrapped_pair
from resources.records.providers.bedrock_bodies import is_converse
from resources.records.providers.langsmith_runs import run_of
from resources.records.providers.ollama_api import is_response
from resources.records.streams import is_chunk

CAPTURE_NOTE_KEY = "capture_note"


@dataclass(frozen=True)
class Format:
    """A log format as the reader sees it. `fills` names the sections of its SQL: interactions, feedback, or both."""

    name: str
    recognises: Callable[[dict], bool]
    fills: tuple[str, ...] = ("interactions",)
    turns: bool = False
    """A record is a conversation, and each of its answers an interaction."""
    plain_text: bool = False
    """A file that is not JSON is one record {text}, where the recipe names the format."""
    streamed: bool = False
    """Its lines are chunks of answers, joined before anything else."""
    rows_as: str = ""
    """The format whose SQL is used."""
    paired: bool = False
    """Requests and responses lie in different objects, and resources/reading/pairing.py joins them."""
    spans: bool = False
    """`calls` and `sides` are run too, and resources/reading/pairing.py joins spans with their log records."""
    when_named: Callable[[dict], bool] | None = None
    """How it recognises records where the recipe names the format, if another way than elsewhere."""

    def accepts(self, record: dict) -> bool:
        """Whether a record is of this format, where the recipe names the format."""
        return (self.when_named or self.recognises)(record)


# --- requests with their responses ----------------------------------------------------------------------------------


def _is_anthropic(record: dict) -> bool:
    if not is_pair(record):
        return False
    request, response = bodies(record)
    if response.get("type") == "message" and response.get("role") == "assistant":
        return True
    if not isinstance(request.get("messages"), list) or "choices" in response or is_converse(request, response):
        return False
    return response.get("type") == "error" or anthropic_api.is_request(request)


def _is_bedrock(record: dict) -> bool:
    """A model invocation log, a line of batch inference {recordId, modelInput, modelOutput}, or a pair of the Converse API."""
    if record.get("schemaType") == "ModelInvocationLog" or "modelInput" in record:
        return True
    if not is_pair(record):
        return False
    request, response = bodies(record)
    if not isinstance(request.get("messages"), list) or "choices" in response:
        return False
    return is_converse(request, response)


def _is_gemini(record: dict) -> bool:
    if not is_pair(record):
        return False
    request, response = bodies(record)
    return "contents" in request and "messages" not in request and "choices" not in response


def _is_ollama(record: dict) -> bool:
    return is_pair(record) and is_response(bodies(record)[1])


def _is_completions(record: dict) -> bool:
    """A pair of the older /v1/completions: {request: {prompt}, response: {choices: [{text}]}}."""
    if not is_pair(record):
        return False
    request, response = bodies(record)
    if "prompt" not in request or "messages" in request or "input" in request:
        return False
    return response.get("object") == "text_completion" or any("text" in choice for choice in objects(response.get("choices")))


def _is_openai_pair(record: dict) -> bool:
    """NVIDIA data-flywheel's log record, of the chat or the Responses API."""
    others = (_is_bedrock, _is_anthropic, _is_gemini, _is_ollama, _is_completions)
    return "request" in record and "response" in record and not any(other(record) for other in others)


# --- requests and responses in different objects; a record's place is that of the response ---------------------------


def _is_openai_batch(record: dict) -> bool:
    if "custom_id" not in record:
        return False
    return {"method", "url", "body"} <= record.keys() or {"id", "response"} <= record.keys()


def _is_anthropic_batch(record: dict) -> bool:
    if "custom_id" not in record:
        return False
    params, result = record.get("params"), record.get("result")
    if isinstance(result, dict):
        return result.get("type") in ("succeeded", "errored", "canceled", "expired")
    return isinstance(params, dict) and "messages" in params


def _is_gemini_batch(record: dict) -> bool:
    """Vertex AI's batch output has the request on its line and is of the format gemini."""
    if "key" not in record or ("request" in record and "response" in record):
        return False
    request, response, error = record.get("request"), record.get("response"), record.get("error")
    if isinstance(response, dict):
        return bool({"candidates", "promptFeedback", "usageMetadata", "prompt_feedback", "usage_metadata"} & response.keys())
    if isinstance(error, dict):
        return "code" in error or "message" in error
    return isinstance(request, dict) and "contents" in request


# --- logs and exports of servers, gateways and tracing tools --------------------------------------------------------


def _is_litellm(record: dict) -> bool:
    return "call_type" in record and "messages" in record and ("startTime" in record or "response" in record)


def _is_otlp(record: dict) -> bool:
    return any(isinstance(record.get(key), list) for key in ("resourceSpans", "resourceLogs", "resourceMetrics"))


def _is_langfuse(record: dict) -> bool:
    """A row of the blob export of observations, or of the older traces."""
    if "trace_id" in record and "start_time" in record:
        return record.get("type") in (
            "SPAN",
            "GENERATION",
            "EVENT",
            "AGENT",
            "TOOL",
            "CHAIN",
            "RETRIEVER",
            "EVALUATOR",
            "EMBEDDING",
            "GUARDRAIL",
        )
    return {"id", "timestamp", "project_id", "bookmarked", "public"} <= record.keys()


def _is_langfuse_score(record: dict) -> bool:
    return (
        record.get("data_type") in ("NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION")
        and "name" in record
        and bool({"value", "string_value", "long_string_value"} & record.keys())
    )


def _is_langsmith(record: dict) -> bool:
    run = run_of(record)
    return isinstance(run.get("run_type"), str) and "inputs" in run and ("start_time" in run or "trace_id" in run)


def _is_sglang(record: dict) -> bool:
    """A line of the request log; `request.received`, which `request.finished` repeats, is counted and skipped."""
    return record.get("event") in ("request.received", "request.finished") and "rid" in record and "obj" in record


def _is_stored_completion(record: dict) -> bool:
    """A page of GET /chat/completions, one completion, or a logger's {messages, tools, choices, usage}."""
    listed = record.get("data")
    if record.get("object") == "list" and isinstance(listed, list):
        return not listed or (isinstance(listed[0], dict) and ("choices" in listed[0] or "role" in listed[0]))
    if record.get("object") == "chat.completion":
        return isinstance(record.get("choices"), list)
    return _holds_answer(record) and _answered_beside(record) and "request" not in record


def _answered_beside(record: dict) -> bool:
    """Whether a request's messages, without the answer, stand beside a response of the chat API or its choices."""
    spoken = record.get("messages")
    if not isinstance(spoken, list) or not spoken or (isinstance(spoken[-1], dict) and spoken[-1].get("role") == "assistant"):
        return False
    return any(map(_holds_answer, (record, *record.values())))


def _holds_answer(body: Any) -> bool:
    choices = body.get("choices") if isinstance(body, dict) else None
    listed = choices if isinstance(choices, list) else []
    return any(isinstance(each, dict) and isinstance(each.get("message"), dict) for each in listed)


# --- feedback -------------------------------------------------------------------------------------------------------

SESSIONS = ("session_id", "conversation_id")
TARGETS = ("response_id", "request_id", "interaction_id", "completion_id", "trace_id", *SESSIONS)
VALUES = ("value", "score", "rating", "thumb", "thumbs", "label", "feedback", "reward")


def _is_about_something(record: dict) -> bool:
    # a run alone may be one of any program: LangSmith's feedback has a key, too
    is_langsmith = {"run_id", "key"} <= record.keys()
    return (is_langsmith or any(key in record for key in TARGETS)) and any(key in record for key in VALUES)


def _is_feedback(record: dict) -> bool:
    """A value or label and the id of what it is about; a record with a chat of its own is a chat with feedback."""
    if not _is_about_something(record) or {"messages", "request"} & record.keys() or is_edit(record):
        return False
    names_answer = any(key in record for key in TARGETS if key not in SESSIONS)  # its texts are copies of a logged call
    places = (record, *(value for value in record.values() if isinstance(value, dict)))
    return not any(wrapped_pair(place, with_texts=not names_answer) for place in places)


def _is_edit(record: dict) -> bool:
    return is_edit(record) or (lacks_correction(record) and not any(key in record for key in VALUES))


# --- data sets ------------------------------------------------------------------------------------------------------


def _is_messages(record: dict) -> bool:
    """OpenAI's SFT and RFT lines; the usual shape of seeds."""
    if not isinstance(record.get("messages"), list) or "call_type" in record or "request" in record:
        return False
    return not _answered_beside(record)


PREFERRED = ("preferred_output", "preferred_completion", "chosen")
REJECTED = ("non_preferred_output", "non_preferred_completion", "rejected", "rejected_response", "rejected_messages")


def _is_preference(record: dict) -> bool:
    """OpenAI's, TRL's, ms-swift's and LLaMA-Factory's DPO lines, hh-rlhf's transcripts, a prompt with an edited answer."""
    if "messages" in record and {"rejected_response", "rejected_messages"} & record.keys():
        return True
    if has_prompt(record) and (edit := sides_of(record)) and all(edit) and "request" not in record:
        return True
    return any(key in record for key in PREFERRED) and any(key in record for key in REJECTED)


def _is_prompt_completion(record: dict) -> bool:
    if "prompt" in record and not isinstance(record["prompt"], dict):  # an object is a request's body
        return "completion" in record or "response" in record or isinstance(record["prompt"], list)
    if "question" in record and "answer" in record:
        return True
    asked = record.get("question", record.get("query"))
    return isinstance(asked, str) and isinstance(record.get("response"), str) and not {"request", "messages"} & record.keys()


def _is_alpaca(record: dict) -> bool:
    return "instruction" in record and ("output" in record or "response" in record)


def _is_sharegpt(record: dict) -> bool:
    return isinstance(record.get("conversations", record.get("conversation")), list) and "messages" not in record


def _is_oasst(record: dict) -> bool:
    """A message tree, one per line."""
    return "message_tree_id" in record and isinstance(record.get("prompt"), dict)


def _is_tokens(record: dict) -> bool:
    """Pre-tokenized rows: {token_ids | input_ids, ...}, or prompt and answer as lists of token ids."""
    if "messages" in record:
        return False
    whole = isinstance(record.get("token_ids", record.get("input_ids")), list)
    sides = (("prompt_token_ids", "prompt"), ("completion_token_ids", "answer", "completion"))
    return whole or all(any(_ids(record.get(key)) for key in keys) for keys in sides)


def _ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and type(value[0]) is int


TEXT_KEYS = {
    "text", "id", "doc_id", "uuid", "url", "title", "source", "meta", "metadata", "timestamp", "date", "created", "added",
    "version", "dump", "file_path", "language", "language_score", "token_count", "license", "subset", "red_pajama_subset",
    "workload_id", "session_id",
}  # fmt: skip
"""Keys of published corpora (C4, The Pile, RedPajama, Dolma, FineWeb, Wikipedia), and ours. Application logs have a `text` too,
so without a named format a record is text only if it has no other keys."""


def _has_text(record: dict) -> bool:
    return isinstance(record.get("text"), str)


_BOTH = ("interactions", "feedback")
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("capture_note", lambda record: isinstance(record.get(CAPTURE_NOTE_KEY), dict)),
        Format("litellm", _is_litellm),
        Format("otlp", _is_otlp, fills=_BOTH, spans=True),
        Format("openai_batch", _is_openai_batch, fills=(), paired=True, rows_as="openai_pairs"),
        Format("anthropic_batch", _is_anthropic_batch, fills=(), paired=True, rows_as="anthropic"),
        Format("gemini_batch", _is_gemini_batch, fills=(), paired=True, rows_as="gemini"),
        Format("langfuse", _is_langfuse),
        Format("langfuse_scores", _is_langfuse_score, fills=("feedback",)),
        Format("langsmith", _is_langsmith, fills=_BOTH),
        Format("sglang", _is_sglang),
        Format("vllm", lambda line: line.get("vllm") in ("request", "response"), fills=(), paired=True, rows_as="sglang"),
        Format("vllm_lines", lambda line: line.get("vllm") in ("chatter", "delta", "params", "broken")),
        Format("log_lines", lambda record: record.get("log_line") is True),
        Format("bedrock", _is_bedrock),
        Format("anthropic", _is_anthropic),
        Format("gemini", _is_gemini),
        Format("ollama", _is_ollama),
        Format("completions", _is_completions),
        Format("openai_pairs", _is_openai_pair),
        Format("chunks", is_chunk, streamed=True, rows_as="openai_pairs"),
        Format("stored_completions", _is_stored_completion),
        Format("trajectories", lambda record: isinstance(record.get("traj"), list), fills=_BOTH, turns=True),
        Format("oasst", _is_oasst, fills=_BOTH),
        Format("edits", _is_edit, fills=("feedback",)),
        Format("preferences", _is_preference, fills=_BOTH),
        Format("tokens", _is_tokens),
        Format("sharegpt", _is_sharegpt, turns=True),
        Format("alpaca", _is_alpaca),
        Format("prompt_completion", _is_prompt_completion),
        Format("messages", _is_messages, turns=True),
        Format("feedback", _is_feedback, fills=("feedback",), when_named=_is_about_something),
        Format("text", lambda line: _has_text(line) and line.keys() <= TEXT_KEYS, plain_text=True, when_named=_has_text),
    )
}
"""In the order in which they are tried: unmistakable keys first."""

MAPPED: dict[str, Format] = {
    f"fields:{name}": replace(
        form, name=f"fields:{name}", recognises=lambda record: False, fills=("interactions",), rows_as=form.rows_as or name
    )
    for name, form in FORMATS.items()
    if name == "messages" or (form.fills == ("interactions",) and not (form.turns or form.streamed or form.plain_text))
}
"""Formats of records that a source's `fields` puts into the keys of another format, by name."""

BY_NAME: dict[str, Format] = FORMATS | MAPPED


def detect(sample: list[dict]) -> Format | None:
    """The format of a file, from its first records; None where no format recognises any of them."""
    votes = {name: sum(form.recognises(record) for record in sample) for name, form in FORMATS.items()}
    best = max(votes, key=lambda name: votes[name])
    return FORMATS[best] if votes[best] else None
