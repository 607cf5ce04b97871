"""A run of LangSmith as an OpenAI chat. Messages as in langchain_core/messages and load/dump.py; a run of `wrap_openai` has the
bodies of OpenAI's chat or Responses API; a traced function its arguments, whose texts are the prompt, and its result."""

from datetime import datetime, timedelta
from typing import Any

from model_ops.chat_apis import body, finish_reason, json_text, mapping, objects, responses_api
from resources.records.example_prompts import KEYS as PROMPTS
from resources.records.example_prompts import composed

ROLES = {
    **dict.fromkeys(("human", "HumanMessage"), "user"),
    **dict.fromkeys(("ai", "AIMessageChunk", "AIMessage"), "assistant"),
    "SystemMessage": "system",
    **dict.fromkeys(("ToolMessage", "FunctionMessage"), "tool"),
}
_KEYS = """
    run_type name status serialized dotted_order parent_run_id parent_run_ids child_runs child_run_ids direct_child_run_ids
    reference_example_id reference_dataset_id session_id session_name app_path manifest_id manifest_s3_id end_time
    first_token_time total_tokens prompt_cost completion_cost prompt_token_details completion_token_details
    prompt_cost_details completion_cost_details price_model_id in_dataset execution_order s3_urls inputs_s3_urls
    outputs_s3_urls inputs_preview outputs_preview last_queued_at share_token attachments tenant_id is_root trace_tier
    ttl_seconds extra.invocation_params extra.runtime extra.batch_size extra.options extra.metadata.ls_provider
    extra.metadata.ls_model_name extra.metadata.ls_model_type extra.metadata.ls_temperature extra.metadata.ls_max_tokens
    extra.metadata.ls_stop extra.metadata.ls_method extra.metadata.ls_run_depth extra.metadata.ls_integration
    extra.metadata.revision_id feedback_stats run data
"""
KEYS = frozenset(_KEYS.split())
"""What every run has: read, or known and left."""
SESSIONS = ("thread_id", "session_id", "conversation_id")


def run_of(record: dict[str, Any]) -> dict[str, Any]:
    """The run in a record that wraps it once more, {run: {...}} or {data: {...}}; else the record itself."""
    inner = next((run for key in ("run", "data") if "run_type" in (run := body(record.get(key)))), {})
    return record if "run_type" in record else {**record, **inner}


def chat(record: dict[str, Any]) -> dict[str, Any]:
    """The run. Raises ValueError for messages that are not known, UncomposedError for a prompt in several of them."""
    if record["run_type"] != "llm":
        return {"skipped": f"langsmith_{record['run_type']}"}
    inputs, outputs, extra = _opened(record.get("inputs")), _opened(record.get("outputs")), body(record.get("extra"))
    if isinstance(inputs, str):
        inputs = {"input": inputs}
    asked = inputs.get("messages")
    if isinstance(asked, list) and asked and isinstance(asked[0], list):
        [asked] = asked  # a batch of one conversation
    params = mapping(extra.get("invocation_params"))
    metadata = mapping(extra.get("metadata"))
    prompts = inputs.get("prompts")
    prompt = prompts[0] if isinstance(prompts, list) and len(prompts) == 1 else inputs.get("prompt")
    of_responses = isinstance(outputs, dict) and outputs.get("object") == "response"
    if of_responses:  # OpenAI's Responses API
        asked = responses_api.messages_of(inputs.get("input"), inputs.get("instructions"))
        answer, ended = responses_api.answer_of(outputs)
        choices = [{"message": answer, "finish_reason": ended}] if answer else []
    else:
        choices = [{"message": message, "finish_reason": finish_reason(ended, message)} for message, ended in _answers(outputs)]
    if not (
        of_responses or isinstance(prompts, list) or (isinstance(prompt, str) and not PROMPTS & inputs.keys() - {"prompt"})
    ):
        whole = {**inputs, "messages": [_message(each) for each in asked]} if isinstance(asked, list) else inputs
        asked, prompt = composed({**whole, **_listed_input(whole)}), None
    outputs = mapping(outputs)
    usage = mapping(outputs.get("usage")) or mapping(outputs.get("usage_metadata"))
    return {
        "messages": asked or None,
        "prompt": prompt,
        "choices": choices,
        "tools": responses_api.tools_of(inputs.get("tools")) if of_responses else params.get("tools") or inputs.get("tools"),
        "params": {
            key: value
            for key, value in {**inputs, **params}.items()
            if key not in PROMPTS | {"tools", "model", "model_name", "prompts", "_type", "instructions", "text"}
            and not isinstance(value, dict | list)
        },
        "usage": {
            "prompt": _first(record.get("prompt_tokens"), usage.get("prompt_tokens"), usage.get("input_tokens")),
            "completion": _first(record.get("completion_tokens"), usage.get("completion_tokens"), usage.get("output_tokens")),
        },
        "request_id": record.get("id"),
        "alias_id": outputs.get("id"),
        "error": record.get("error") or None,
        "model": _first(params.get("model"), params.get("model_name"), metadata.get("ls_model_name"), inputs.get("model")),
        "written_ts": record.get("start_time"),
        "latency_ms": _milliseconds(record.get("start_time"), record.get("end_time")),
        "ttft_ms": _milliseconds(record.get("start_time"), record.get("first_token_time")),
        "session_id": _first(*(metadata.get(name) for name in SESSIONS)),
        "metadata": {key: value for key, value in metadata.items() if key in ("user_id", "workload_id", "trace_id")},
    }


def _milliseconds(begun: Any, ended: Any) -> float | None:
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)) / timedelta(milliseconds=1)
    except (TypeError, ValueError):  # without one of them, or with a zone in one alone
        return None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _opened(side: Any) -> Any:
    """A side of a run without the keys that wrap it: a function's one argument, or its result."""
    inner_side = body(side) or side
    while (
        isinstance(inner_side, dict)
        and len(inner_side) == 1
        and (key := next(iter(inner_side))) in ("inputs", "outputs", "input", "output")
    ):
        inner = body(inner_side[key])
        if not inner or (key in ("input", "output") and _is_message(inner)):
            break
        inner_side = inner
    return inner_side if isinstance(inner_side, str) else mapping(inner_side)


def _is_message(said: dict[str, Any]) -> bool:
    return "content" in said or "kwargs" in said or "lc" in said


def _listed_input(inputs: dict[str, Any]) -> dict[str, Any]:
    """The messages of an `input` or `prompt` that is a list of them, or LangChain's prompt object."""
    for key in ("input", "prompt", "history", "chat_history"):
        value = inputs.get(key)
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            return {key: [_message(each) for each in value]}
    return {}


_TEXTS = ("answer", "response", "completion", "text", "generated_text", "result", "content")


def _answers(outputs: Any) -> list[tuple[dict[str, Any], Any]]:
    """The answers of a run, each with the reason why it ended."""
    if isinstance(outputs, str):
        return [({"role": "assistant", "content": outputs}, None)] if outputs else []
    if objects(outputs.get("choices")):
        return [
            (
                mapping(choice.get("message")) or {"role": "assistant", "content": choice.get("text")},
                choice.get("finish_reason"),
            )
            for choice in objects(outputs["choices"])
        ]
    generations = outputs.get("generations")
    if isinstance(generations, list) and generations:
        first = generations[0] if isinstance(generations[0], list) else generations
        return [_generated(each if isinstance(each, dict) else {"text": each}) for each in first]
    answer = next((outputs[key] for key in ("messages", "output", *_TEXTS) if outputs.get(key)), outputs)
    answer = answer[-1] if isinstance(answer, list) and answer else answer
    if isinstance(answer, str) and not _is_message(outputs):
        return [({"role": "assistant", "content": answer}, None)]
    answer = outputs if isinstance(answer, str) else answer
    return [({**_message(answer), "role": "assistant"}, None)] if isinstance(answer, dict) and answer else []


def _generated(generation: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    said = generation.get("message")
    message = _message(said) if isinstance(said, dict) else {"role": "assistant", "content": generation.get("text")}
    held = mapping(mapping(said).get("kwargs")) or mapping(said)
    facts = {**mapping(held.get("response_metadata")), **mapping(generation.get("generation_info"))}
    return message, _first(facts.get("finish_reason"), facts.get("stop_reason"), facts.get("done_reason"))


def _message(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError("a message is no object")
    if isinstance(said.get("kwargs"), dict) and isinstance(said.get("id"), list):
        said = {"type": said["id"][-1], **said["kwargs"]} if said["id"] else said["kwargs"]
    elif isinstance(said.get("data"), dict):
        said = {**said["data"], "type": said.get("type")}
    if isinstance(said.get("role"), str) and "tool_calls" not in said:
        return {key: value for key, value in said.items() if key != "type"}
    kind = str(said.get("role") or said.get("type")).removesuffix("Chunk")
    message = {"role": ROLES.get(kind, kind), "content": said.get("content")}
    if isinstance(message["content"], list):  # calls are in tool_calls, too
        message["content"] = [
            part
            for part in message["content"]
            if mapping(part).get("type") not in ("tool_use", "function_call", "thinking", "reasoning", "tool_call")
        ] or None
    calls = objects(said.get("tool_calls")) or objects(mapping(said.get("additional_kwargs")).get("tool_calls"))
    if calls:
        message["tool_calls"] = [
            call
            if "function" in call
            else {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call.get("name"), "arguments": json_text(call.get("args") or {})},
            }
            for call in calls
        ]
    return message | {key: said[key] for key in ("tool_call_id", "name") if isinstance(said.get(key), str)}
