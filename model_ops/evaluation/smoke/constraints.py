"""Checks of the smoke set on structured outputs: JSON schema, tool call, regular expression, grammar, rows of the traffic.

The server has to keep to the constraint, whatever the model would rather say. An answer that was cut by its token limit says
nothing, so each constraint is tried until WHOLE answers are whole, TRIES times at most, the first time greedily. rows: held-out
prompts whose request had a json_schema. The tool is strict: only then does vLLM 0.32 constrain a call's arguments, too.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_ops.evaluation.smoke.answers import SmokeResult
from model_ops.evaluation.smoke.asking import NoAnswerError, NoParser, SmokeClient, SmokePrompt, TooLong
from model_ops.jobs import counted
from model_ops.tasks import JsonItem, score_json

TRIES, WHOLE, TOKENS, ROW_TOKENS = 4, 2, 192, 512
VARIED = {"temperature": 1.0, "frequency_penalty": 2.0}
"""Penalty of further tries: a model that was not trained on JSON writes white space up to its limit; a penalty stops that."""
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "count": {"enum": [1, 2, 3]}},
    "required": ["answer", "count"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_colour",
        "description": "Sets the colour of a lamp.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
PATTERN = "(yes|no)-[0-9]{2}"
GRAMMAR = 'root ::= pair "." \npair ::= "left" | "right"\n'
IN_GRAMMAR = ("left.", "right.")
ASKS_JSON = SmokePrompt(
    "built-in",
    [
        {
            "role": "user",
            "content": "Is three more than two? Answer with a JSON object: answer is yes or no, count is 1, 2 or 3.",
        }
    ],
)
ASKS_TOOL = SmokePrompt("built-in", [{"role": "user", "content": "Make the lamp red."}])

Judge = Callable[[dict[str, Any]], bool]
"""Whether a choice keeps to the constraint."""


def check_constraints(asking: SmokeClient, rows: Sequence[SmokePrompt], is_vllm: bool = True) -> Iterator[SmokeResult]:
    """One finding per kind of constraint. is_vllm: whether the server knows vLLM's fields of a request."""
    if asking.plain:
        yield SmokeResult("constraints", None, "this server does not enforce structured outputs")
        return
    yield _check(
        asking, "json schema", ASKS_JSON, lambda choice: follows(SCHEMA, _text(choice)), response_format=schema_format(SCHEMA)
    )
    if rows:
        yield _rows(asking, rows)
    if not is_vllm:
        yield SmokeResult("tool call, regex, grammar", None, "only vLLM is asked for them")
        return
    yield _check(
        asking,
        "tool call",
        ASKS_TOOL,
        calls_tool,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": TOOL["function"]["name"]}},
    )
    yield _check(
        asking,
        "regex",
        ASKS_JSON,
        lambda choice: re.fullmatch(PATTERN, _text(choice)) is not None,
        structured_outputs={"regex": PATTERN},
    )
    yield _check(
        asking, "grammar", ASKS_JSON, lambda choice: _text(choice) in IN_GRAMMAR, structured_outputs={"grammar": GRAMMAR}
    )


def _check(asking: SmokeClient, name: str, prompt: SmokePrompt, judge: Judge, **constraint: Any) -> SmokeResult:
    whole = 0
    for attempt in range(TRIES):
        if whole == WHOLE:
            break
        try:
            choice = asking.chat(prompt, **({**VARIED, "seed": attempt} if attempt else {}), max_tokens=TOKENS, **constraint)
        except NoParser:
            return SmokeResult(name, None, "vLLM runs without --tool-call-parser, and none is known for the chat template")
        except NoAnswerError as error:
            return SmokeResult(name, False, str(error))
        if choice["finish_reason"] != "length":
            whole += 1
            if not judge(choice):
                return SmokeResult(name, False, "an answer breaks the constraint")
    if not whole:
        return SmokeResult(name, None, f"each of {TRIES} answers was cut at {TOKENS} tokens")
    return SmokeResult(name, True, f"{counted(whole, 'answer')} as constrained")


def _rows(asking: SmokeClient, rows: Sequence[SmokePrompt]) -> SmokeResult:
    """Rows of the traffic that asked for a schema."""
    whole = 0
    for row in rows:
        schema = schema_of(row)
        try:
            choice = asking.chat(row, max_tokens=ROW_TOKENS, response_format=row.request["response_format"])
        except TooLong:
            continue
        except NoAnswerError as error:
            return SmokeResult("schema rows", False, f"row {row.row_id}: {error}")
        if choice["finish_reason"] != "length":
            whole += 1
            if schema is not None and not follows(schema, _text(choice)):
                return SmokeResult("schema rows", False, f"row {row.row_id}: the answer breaks the schema of its request")
    if not whole:
        return SmokeResult("schema rows", None, f"no answer was whole within {ROW_TOKENS} tokens and the server's context")
    return SmokeResult("schema rows", True, f"{counted(whole, 'answer')} of {len(rows)} whole, and as their requests ask")


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's response_format for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def schema_of(prompt: SmokePrompt) -> dict[str, Any] | None:
    """The JSON schema that the request asked for; None without one."""
    shape = prompt.request.get("response_format")
    if not isinstance(shape, dict) or shape.get("type") != "json_schema" or not isinstance(shape.get("json_schema"), dict):
        return None
    schema = shape["json_schema"].get("schema")
    return schema if isinstance(schema, dict) else None


def follows(schema: dict[str, Any], text: str) -> bool:
    """Whether a text is JSON that the schema accepts."""
    return score_json(JsonItem(suite="smoke", item_id="", messages=[], json_schema=schema), text) == 1.0


def calls_tool(choice: dict[str, Any]) -> bool:
    """Whether a choice is a call of TOOL with accepted arguments."""
    try:
        [call] = choice["message"]["tool_calls"]
        function = call["function"]
        return function["name"] == TOOL["function"]["name"] and follows(
            TOOL["function"]["parameters"], json.dumps(json.loads(function["arguments"]))
        )
    except (KeyError, TypeError, ValueError):
        return False


def _text(choice: dict[str, Any]) -> str:
    return choice["message"].get("content") or ""
