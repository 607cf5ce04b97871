"""Which fields of a request a session's address answers; a field that asks for anything else is refused by its name.

    check_fields(body, CHAT_COMPLETIONS)           # raises SessionError, which names the field
    check_tools(body.get("tools"), FUNCTION, "function")

A set names the fields that are read, and those that change neither what the model is shown nor what it says. NEUTRAL has the
values with which another field asks for nothing. Fields as in CompletionCreateParams and ResponseCreateParams of openai-python
and MessageCreateParams of anthropic-sdk-python, and vLLM's further ones.
"""

from collections.abc import Set
from typing import Any

from model_ops.environments.policy_sessions import SessionError

_EVERYWHERE = "model metadata service_tier stream tools temperature top_p top_k min_p seed"
_OPENAI = f"""{_EVERYWHERE} user safety_identifier store stream_options prompt_cache_key prompt_cache_options
    prompt_cache_retention"""
CHAT_COMPLETIONS, RESPONSES, MESSAGES, FUNCTION, FLAT_FUNCTION, CLIENT_TOOL = (
    frozenset(names.split())
    for names in (
        f"""{_OPENAI} messages max_tokens max_completion_tokens reasoning_effort chat_template_kwargs documents prediction""",
        f"""{_OPENAI} input instructions previous_response_id max_output_tokens max_tool_calls include reasoning.effort
        reasoning.summary reasoning.generate_summary""",
        f"""{_EVERYWHERE} messages system max_tokens cache_control output_config.effort thinking.display diagnostics
        inference_geo speed user_profile_id workspace_id""",
        "function.name function.description function.parameters function.strict",
        "name description parameters strict",
        "name description input_schema strict cache_control eager_input_streaming",
    )
)
"""Of requests, and of a tool in each of them. The training samples as it does, whatever `temperature` and the like say: what
samples otherwise is not what learns. `strict` promises nothing, and `max_tool_calls` counts tools of a provider."""
_NEUTRAL: tuple[tuple[Any, str], ...] = (
    (False, "stop logprobs background continue_final_message tool_choice.disable_parallel_tool_use defer_loading async"),
    (0, "top_logprobs presence_penalty frequency_penalty"),
    (1, "n repetition_penalty"),
    (True, "parallel_tool_calls add_generation_prompt"),
    ("auto", "tool_choice tool_choice.type function_call truncation reasoning.context"),
    ("none", "tool_choice tool_choice.type function_call"),
    ("text", "response_format.type text.format.type"),
    ("medium", "verbosity text.verbosity"),
    ("standard", "reasoning.mode"),
    ("adaptive", "thinking.type"),
    ("disabled", "truncation thinking.type"),
    ("function", "type"),
    ("custom", "type"),
    (["text"], "modalities"),
    (["direct"], "allowed_callers"),
)
NEUTRAL = {name: [value for value, names in _NEUTRAL if name in names.split()] for _, all_ in _NEUTRAL for name in all_.split()}
"""Values with which a field asks for nothing, as None and empty values do in any field."""
_SENTENCES = {
    "n": "is not 1: each request has one answer",
    "stop stop_sequences": "is given: answers end where the model ends them",
    "response_format text.format output_config.format output_format": "is given: the model is not guided while it learns",
    "tool_choice": "forces or narrows the choice: the model is not guided while it learns, so give only tools that it may call",
    "parallel_tool_calls tool_choice.disable_parallel_tool_use": "asks for one call at a time: an answer may hold several, so "
    "leave it out and run them one after the other",
    "functions function_call": "is the older form: give tools and tool_choice instead",
    "logprobs top_logprobs": "is given: answers come without log-probabilities",
    "conversation prompt": "names what another server stores: send its messages, or the previous_response_id of an answer of "
    "this attempt",
    "background": "is true: the answer comes with its request",
    "thinking": "limits the reasoning: it is not cut here, so give the type adaptive or disabled",
    "logit_bias presence_penalty frequency_penalty repetition_penalty": "changes how the model samples: the training's own "
    "sampling counts, so leave it out",
}
SENTENCES = {name: text for names, text in _SENTENCES.items() for name in names.split()}
"""By the name of a field, or of the one that holds it."""
ELSE = "is given, and this address does not do what it asks: leave it out"


def check_fields(given: dict[str, Any], answered: Set[str], at: str = "", shown: str = "") -> None:
    """at: what holds the fields, as the tables name it. shown: the same, as the message does. Raises SessionError."""
    for key, value in given.items():
        field = f"{at}{key}"
        if value is None or value in ("", [], {}) or field in answered or value in NEUTRAL.get(field, ()):
            continue
        if field == "parallel_tool_calls" and not given.get("tools"):
            continue
        if isinstance(value, dict) and any(each.startswith(f"{field}.") for each in (*answered, *NEUTRAL)):
            check_fields(value, answered, f"{field}.", shown)
            continue
        reason = SENTENCES.get(field) or SENTENCES.get(field.rpartition(".")[0], ELSE)
        name = f"{shown}{field[:80]}"
        raise SessionError(f"{name} {reason}", code="unsupported_parameter", param=name)


def check_tools(tools: Any, answered: Set[str], *types: str | None) -> None:
    """types: of functions that the agent runs, which the model may call. Raises SessionError for any other tool."""
    for place, tool in enumerate(tools or ()):
        shown, given = f"tools[{place}]", isinstance(tool, dict) and tool.get("type")
        if given not in types:
            raise SessionError(
                f"{shown} is of the type {str(given)[:60]}: the model calls only functions with a schema, which the agent runs",
                param=shown,
            )
        check_fields(tool, answered, shown=f"{shown}.")
